package io.alluvium.bench;

import io.alluvium.bench.Meter.Consumer;
import io.alluvium.bench.Meter.Work;
import io.alluvium.harness.Await;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * The cases, in the order in which they are measured, on one plugin.
 *
 * <p>Flow: everything the cases need is copied first, each case's segments under ids of their own, which is the case
 * "copy"; after a pause the reads follow, and in the end everything is deleted. So whatever a case reads for the first
 * time is cold, whatever the plugin keeps.
 */
final class Cases {
    static final List<String> NAMES = List.of("copy", "full", "sequential", "shared", "separate", "random", "index", "delete");

    private static final int CONSUMERS = 8;
    private static final int RANDOM_FETCHES = 100;
    private static final int WARM_PASSES = 16;
    /** The raw limit reads so much, so that ticks and connections count little. */
    private static final long RAW_BYTES = 512L << 20;

    private final Options options;
    private final RemoteStorageManager plugin;
    private final StoreLink store;
    private final Report report;
    private final List<LocalSegment> locals;
    private final Meter meter;
    private final Consumers consumers;
    private final Uuid topicId = Uuid.randomUuid();
    private final TreeMap<String, List<TieredSegment>> tiered = new TreeMap<>();
    private int partitions;

    /** @param locals successive segments of one partition */
    Cases(Options options, RemoteStorageManager plugin, StoreLink store, Report report, List<LocalSegment> locals) {
        this.options = options;
        this.plugin = plugin;
        this.store = store;
        this.report = report;
        this.locals = locals;
        meter = new Meter(store);
        consumers = new Consumers(plugin, options.openAt);
    }

    void run() throws Exception {
        warmUp();
        prepare("full", partition());
        prepare("sequential", partition());
        prepare("shared", partition().subList(0, 1));
        prepare("separate", oneOfEach(CONSUMERS));
        prepare("random", partition());
        prepare("index", oneOfEach(CONSUMERS));
        List<TieredSegment> all = tiered.values().stream().flatMap(List::stream).toList();
        Row copy = each("copy", all, segment -> segment.copy(plugin));
        if (wants("copy")) {
            report.add(copy);
        }
        Await.pause(options.settleSeconds * 1000L);
        full();
        sequential();
        shared();
        separate();
        random();
        index();
        Row delete = each("delete", all, segment -> plugin.deleteLogSegmentData(segment.metadata()));
        if (wants("delete")) {
            report.add(delete);
        }
        int left = store.objects();
        if (left > 0) {
            System.out.println("\nobjects in the bucket after the deletes: " + left);
        }
    }

    /** Loads classes and compiles what is called often, on a segment of its own. */
    private void warmUp() throws Exception {
        TieredSegment segment = partition().get(0);
        segment.copy(plugin);
        Reading reading = reading();
        consumers.wholeStream(reading, List.of(segment));
        consumers.sequentialFrom(reading, segment, segment.local().baseOffset());
        consumers.firstFetch(reading, List.of(segment));
        plugin.deleteLogSegmentData(segment.metadata());
    }

    private void full() {
        if (wants("full")) {
            report.add(alone("full read, one stream", reading -> consumers.wholeStream(reading, tiered.get("full"))));
            rawLimit();
        }
    }

    private void sequential() {
        if (!wants("sequential")) {
            return;
        }
        List<TieredSegment> segments = tiered.get("sequential");
        report.add(alone("sequential, cold", reading -> consumers.sequential(reading, segments)));
        TieredSegment last = segments.get(segments.size() - 1);
        LocalSegment local = last.local();
        long from = local.offsetAt(Math.max(0, local.sizeInBytes() - options.warmBytes));
        report.add(alone("sequential, warm", reading -> {
            for (int pass = 0; pass < WARM_PASSES; pass++) {
                consumers.sequentialFrom(reading, last, from);
            }
        }));
        rawLimit();
    }

    private void shared() {
        if (wants("shared")) {
            List<TieredSegment> segment = tiered.get("shared");
            Work work = reading -> consumers.sequential(reading, segment);
            report.add(meter.measure(CONSUMERS + " consumers, one segment",
                    IntStream.range(0, CONSUMERS).mapToObj(index -> consumer(work)).toList()));
            rawLimit();
        }
    }

    private void separate() {
        if (wants("separate")) {
            report.add(meter.measure(CONSUMERS + " consumers, " + CONSUMERS + " segments", tiered.get("separate").stream()
                    .map(segment -> consumer(reading -> consumers.sequential(reading, List.of(segment))))
                    .toList()));
            rawLimit();
        }
    }

    private void random() {
        if (wants("random")) {
            report.add(alone(RANDOM_FETCHES + " random reads",
                    reading -> consumers.random(reading, tiered.get("random"), RANDOM_FETCHES, options.seed)));
            rawLimit();
        }
    }

    private void index() {
        if (wants("index")) {
            Work work = reading -> consumers.firstFetch(reading, tiered.get("index"));
            report.add(alone("indexes and first fetch, cold", work));
            report.add(alone("indexes and first fetch, warm", work));
        }
    }

    /** A call that writes or deletes, for each segment in turn; its latency is that of the call. */
    private Row each(String name, List<TieredSegment> segments, Call call) {
        return alone(name, reading -> {
            for (TieredSegment segment : segments) {
                reading.begin();
                call.on(segment);
                reading.end();
                long bytes = name.equals("copy") ? segment.local().sizeInBytes() : 0;
                reading.count(bytes, bytes);
            }
        });
    }

    private interface Call {
        void on(TieredSegment segment) throws RemoteStorageException;
    }

    private Row alone(String name, Work work) {
        return meter.measure(name, List.of(consumer(work)));
    }

    private Consumer consumer(Work work) {
        return new Consumer(reading(), work);
    }

    /** With room for the latencies of any case: a sequential consumer makes at most one fetch a batch. */
    private Reading reading() {
        int batches = locals.stream().mapToInt(LocalSegment::batches).sum();
        return new Reading(WARM_PASSES * batches + RANDOM_FETCHES);
    }

    private void rawLimit() {
        RawLimit limit = store.rawLimit((int) Math.max(1, RAW_BYTES / locals.get(0).sizeInBytes()));
        if (limit != null) {
            report.add(limit);
        }
    }

    private boolean wants(String name) {
        return options.cases.contains(name);
    }

    private void prepare(String name, List<TieredSegment> segments) {
        if (wants(name)) {
            tiered.put(name, segments);
        }
    }

    /** All local segments, as those of a new partition. */
    private List<TieredSegment> partition() {
        TopicIdPartition partition = new TopicIdPartition(topicId, new TopicPartition("bench", partitions++));
        return locals.stream().map(local -> new TieredSegment(local, partition, Uuid.randomUuid())).toList();
    }

    /** So many segments of different partitions. */
    private List<TieredSegment> oneOfEach(int count) {
        List<TieredSegment> segments = new ArrayList<>();
        while (segments.size() < count) {
            List<TieredSegment> whole = partition();
            segments.add(whole.get(segments.size() % whole.size()));
        }
        return segments;
    }
}

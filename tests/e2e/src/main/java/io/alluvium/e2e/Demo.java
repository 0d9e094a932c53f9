package io.alluvium.e2e;

import io.alluvium.harness.Await;
import io.alluvium.harness.HarnessException;
import io.alluvium.harness.Project;
import io.alluvium.harness.RecordGenerator;
import io.alluvium.harness.WorkDir;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongConsumer;

/**
 * `make demo`: a real broker tiers a topic through the plugin and reads everything back; every claim is checked, and the
 * exit status says whether all were true.
 */
public final class Demo {
    private static final int PARTITIONS = 2;
    private static final int SEGMENT_BYTES = 16 << 20;
    private static final long MEGABYTE = 1_000_000;
    private static final Duration TIERING_LIMIT = Duration.ofSeconds(180);
    private static final Duration DELETE_LIMIT = Duration.ofSeconds(60);
    private static final String TOPIC = "demo";

    private final ProgressLine progress = new ProgressLine();
    private final Checks checks = new Checks(progress);
    private final long bytesToProduce;
    private final Table table = new Table();
    private final RecordGenerator generator = RecordGenerator.withRandomSeed();

    private Demo(long bytesToProduce) {
        this.bytesToProduce = bytesToProduce;
    }

    /** Runs the demo on the store that the environment names. */
    public static void main(String[] arguments) {
        long started = System.nanoTime();
        Demo demo = new Demo(Long.getLong("alluvium.e2e.demo.bytes", 200 * MEGABYTE));
        WorkDir work = new WorkDir("demo");
        boolean succeeded = false;
        try (Store store = Store.fromEnvironment(work)) {
            System.out.println("store   " + store.description());
            demo.run(store, work);
            succeeded = demo.checks.failed() == 0;
        } catch (RuntimeException failure) {
            demo.checks.that(false, "the demo runs to its end: " + failure.getMessage());
        }
        demo.table.print();
        work.finish(succeeded);
        System.out.printf("%n%s: %d checks true, %d false, %.0f s%n", succeeded ? "All true" : "NOT all true",
                demo.checks.passed(), demo.checks.failed(), (System.nanoTime() - started) / 1e9);
        // Client threads may linger for seconds; everything that matters is closed.
        System.exit(succeeded ? 0 : 1);
    }

    private void run(Store store, WorkDir work) {
        try (KafkaBroker broker = new KafkaBroker(work.directory("broker"), store.pluginSettings()).start()) {
            System.out.println("broker  Kafka " + Project.kafkaVersion() + " at " + broker.bootstrapServers());
            try (Topic topic = Topic.create(broker, TOPIC, PARTITIONS, SEGMENT_BYTES);
                    LocalSegments segments = new LocalSegments(broker, topic, work.directory("local-copies"));
                    PluginMetrics metrics = new PluginMetrics(broker)) {
                Workload workload = new Workload(broker.bootstrapServers(), generator);
                List<RecordDigest> produced = produceAndTier(workload, topic, segments, store.view());
                compareObjects(segments, store.view(), work);
                readBack(workload, topic, produced);
                seekByTime(workload, topic);
                readMetrics(metrics);
                deleteTopic(topic, store.view());
                judgeFailures(metrics);
            }
            checks.that(broker.stop(), "the broker shuts down in order on SIGTERM");
            judgeLog(broker, store);
        }
    }

    private List<RecordDigest> produceAndTier(Workload workload, Topic topic, LocalSegments segments, BucketView view) {
        System.out.printf("topic   %s, %d partitions, segments of %d MiB, tiered; producing %d MB of JSON records (seed %d)%n",
                topic.name(), PARTITIONS, SEGMENT_BYTES >> 20, bytesToProduce / MEGABYTE, generator.seed());
        long started = System.nanoTime();
        List<RecordDigest> produced = whileTelling(
                counter -> workload.produce(topic, bytesToProduce, counter),
                bytes -> String.format("produced %3d MB · %s", bytes / MEGABYTE, tieringState(topic, segments, view)));
        long producedAt = System.nanoTime();
        long records = produced.stream().mapToLong(RecordDigest::records).sum();
        long bytes = produced.stream().mapToLong(RecordDigest::bytes).sum();
        table.add("produced", "%d MB, %,d records, %.0f MB/s", bytes / MEGABYTE, records,
                megabytesPerSecond(bytes, producedAt - started));

        AtomicLong copiedAt = new AtomicLong();
        boolean tiered = Await.holds(TIERING_LIMIT, () -> {
            progress.show(String.format("tiering · %s", tieringState(topic, segments, view)));
            if (segments.inStore(view) == segments.rolled().size()) {
                copiedAt.compareAndSet(0, System.nanoTime());
            }
            return segments.allTiered(view);
        });
        int rolled = segments.rolled().size();
        checks.that(tiered,
                "all " + rolled + " closed segments are in the bucket, and only the active ones are on the local disk");
        long tieredBytes = view.list().entrySet().stream()
                .filter(entry -> entry.getKey().endsWith(".log")).mapToLong(Map.Entry::getValue).sum();
        table.add("tiered", "%d MB in %d segments, %.0f MB/s (from the first record produced to the last segment stored)",
                tieredBytes / MEGABYTE, rolled, megabytesPerSecond(tieredBytes, copiedAt.get() - started));
        long[] earliestLocal = topic.earliestLocalOffsets();
        checks.that(Arrays.stream(earliestLocal).allMatch(offset -> offset > 0),
                "the earliest local offset of every partition is above 0: " + Arrays.toString(earliestLocal));
        checks.that(Arrays.stream(topic.earliestOffsets()).allMatch(offset -> offset == 0),
                "the earliest offset of every partition is still 0");
        return produced;
    }

    private static String tieringState(Topic topic, LocalSegments segments, BucketView view) {
        return String.format("in the bucket %2d · closed %2d · local files %2d · earliest local offset %s",
                segments.inStore(view), segments.rolled().size(), segments.onDisk(), Arrays.toString(topic.earliestLocalOffsets()));
    }

    private void compareObjects(LocalSegments segments, BucketView view, WorkDir work) {
        Map<String, Path> rolled = segments.rolled();
        List<String> differences = segments.differencesTo(view);
        differences.forEach(difference -> System.out.println("      " + difference));
        if (!checks.that(!rolled.isEmpty() && differences.isEmpty(), "all " + rolled.size()
                + " .log objects are byte for byte the broker's files (kept before it deleted them)")) {
            return;
        }
        String segment = rolled.keySet().iterator().next();
        String key = segments.keysOf(view.list(), segment).get(0);
        Path downloaded = work.directory("downloaded").resolve(segment.substring(segment.indexOf('/') + 1) + ".log");
        try (InputStream stored = view.open(key)) {
            Files.copy(stored, downloaded);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        checks.that(DumpLog.reads(downloaded, work.directory("dump")), "kafka-dump-log reads a downloaded object: " + key);
    }

    private void readBack(Workload workload, Topic topic, List<RecordDigest> produced) {
        Workload.ReadResult result = whileTelling(
                counter -> workload.readAll(topic, counter),
                bytes -> String.format("reading from offset 0 · %3d of %d MB", bytes / MEGABYTE, bytesToProduce / MEGABYTE));
        result.differences().forEach(difference -> System.out.println("      " + difference));
        checks.that(result.matches(produced), String.format("all %,d records read from offset 0 are as produced; checksums %s",
                result.records(), result.digests()));
        table.add("read", "%d MB from offset 0, %.0f MB/s", result.bytes() / MEGABYTE,
                megabytesPerSecond(result.bytes(), result.took().toNanos()));
    }

    private void seekByTime(Workload workload, Topic topic) {
        long[] earliestLocal = topic.earliestLocalOffsets();
        List<String> faults = new ArrayList<>();
        int seeks = 0;
        for (int partition = 0; partition < PARTITIONS; partition++) {
            for (int quarter = 0; quarter < 4; quarter++) {
                seeks++;
                String fault = workload.seekByTime(topic, partition, Math.max(0, earliestLocal[partition] * quarter / 4 - 1));
                if (fault != null) {
                    faults.add(fault);
                }
            }
        }
        faults.forEach(fault -> System.out.println("      " + fault));
        checks.that(faults.isEmpty(), seeks + " seeks by time into the tiered part end at the right record");
    }

    private void readMetrics(PluginMetrics metrics) {
        List<String> missing = new ArrayList<>();
        OptionalDouble copied = metric(metrics, "copy", "bytes_total", missing);
        OptionalDouble segments = metric(metrics, "copy", "segments_total", missing);
        OptionalDouble fetched = metric(metrics, "fetch", "bytes_total", missing);
        OptionalDouble gets = metric(metrics, "store", "get_requests_total", missing);
        OptionalDouble puts = metric(metrics, "store", "put_requests_total", missing);
        OptionalDouble parts = metric(metrics, "store", "upload_part_requests_total", missing);
        OptionalDouble hits = metric(metrics, "cache", "hits_total", missing);
        OptionalDouble misses = metric(metrics, "cache", "misses_total", missing);
        table.add("plugin: copied", "%s bytes, %s segments, %s PUTs and %s parts",
                shown(copied), shown(segments), shown(puts), shown(parts));
        table.add("plugin: fetched", "%s bytes with %s GETs", shown(fetched), shown(gets));
        table.add("plugin: cache", "%s hits, %s misses", shown(hits), shown(misses));
        checks.that(missing.isEmpty(), missing.isEmpty() ? "the plugin's MBeans give every figure of the table"
                : "the plugin's MBeans give every figure of the table; missing: " + missing);
    }

    private void judgeFailures(PluginMetrics metrics) {
        List<String> failures = new ArrayList<>();
        for (String part : List.of("copy", "fetch", "index", "delete")) {
            OptionalDouble count = metrics.read(part, "failures_total");
            if (count.isEmpty() || count.getAsDouble() != 0) {
                failures.add(part + ": " + shown(count));
            }
        }
        checks.that(failures.isEmpty(), "the plugin counts no failure" + (failures.isEmpty() ? "" : ": " + failures));
    }

    private static OptionalDouble metric(PluginMetrics metrics, String part, String attribute, List<String> missing) {
        OptionalDouble value = metrics.read(part, attribute);
        if (value.isEmpty()) {
            missing.add(part + "." + attribute);
        }
        return value;
    }

    private static String shown(OptionalDouble value) {
        return value.isPresent() ? String.format("%,.0f", value.getAsDouble()) : "-";
    }

    private void deleteTopic(Topic topic, BucketView view) {
        topic.delete();
        boolean empty = Await.holds(DELETE_LIMIT, () -> {
            int left = view.list().size();
            progress.show("topic deleted · objects left in the bucket: " + left);
            return left == 0;
        });
        checks.that(empty, "after the topic's deletion the bucket is empty");
    }

    private void judgeLog(KafkaBroker broker, Store store) {
        List<String> errors = broker.log().tieringErrors();
        errors.stream().limit(5).forEach(line -> System.out.println("      " + line));
        checks.that(errors.isEmpty(), "the broker's log has no error about tiering");
        String written = broker.everythingWritten();
        checks.that(store.secrets().stream().noneMatch(written::contains), "no secret is in the broker's log");
    }

    /** A task that counts as it goes. */
    private interface CountingTask<T> {
        T run(LongConsumer counter);
    }

    /** Turns a count into the text of the progress line. */
    private interface Telling {
        String text(long count);
    }

    /** Runs the task in a thread of its own, while this one shows how far it is: showing must not slow it. */
    private <T> T whileTelling(CountingTask<T> task, Telling telling) {
        ExecutorService executor = Executors.newSingleThreadExecutor();
        AtomicLong count = new AtomicLong();
        try {
            Future<T> future = executor.submit(() -> task.run(count::set));
            while (!future.isDone()) {
                progress.show(telling.text(count.get()));
                Await.pause(100);
            }
            return future.get();
        } catch (ExecutionException failure) {
            throw failure.getCause() instanceof RuntimeException cause ? cause
                    : new HarnessException("a task failed", failure.getCause());
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted", interrupted);
        } finally {
            executor.shutdownNow();
        }
    }

    private static double megabytesPerSecond(long bytes, long nanos) {
        return bytes / 1e6 / (nanos / 1e9);
    }
}

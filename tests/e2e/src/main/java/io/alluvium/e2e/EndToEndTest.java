package io.alluvium.e2e;

import io.alluvium.harness.Await;
import io.alluvium.harness.Project;
import io.alluvium.harness.RecordGenerator;
import io.alluvium.harness.WorkDir;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.Set;
import java.util.stream.IntStream;

/**
 * The plugin in a real broker: data goes to the store and comes back the same; configuration errors, a crash and a
 * shutdown end as an operator expects. The last line says how many scenarios passed; the exit status whether all did.
 *
 * <p>The scenarios share one broker and build on each other: what the first one wrote, the next ones read.
 */
public final class EndToEndTest {
    private static final int PARTITIONS = 2;
    private static final int SEGMENT_BYTES = 1 << 20;
    private static final long DATA_BYTES = 24_000_000;
    private static final String COMPRESSED_TOPIC = "compressed";
    /** Of each codec; the best makes a quarter of it. */
    private static final long CODEC_BYTES = 3_000_000;
    private static final int TRANSACTIONS = 60;
    private static final Duration TIERING_LIMIT = Duration.ofSeconds(120);
    private static final Duration DELETE_LIMIT = Duration.ofSeconds(60);
    private static final Duration REFUSAL_LIMIT = Duration.ofSeconds(30);

    private final Scenarios scenarios = new Scenarios();
    private final WorkDir work;
    private final Store store;
    private final RecordGenerator generator = RecordGenerator.withRandomSeed();
    private KafkaBroker broker;
    private Topic topic;
    private LocalSegments segments;
    private List<RecordDigest> produced;

    private EndToEndTest(WorkDir work, Store store) {
        this.work = work;
        this.store = store;
    }

    /** Runs all scenarios on the store that the environment names. */
    public static void main(String[] arguments) {
        WorkDir work = new WorkDir("e2e");
        Scenarios scenarios;
        try (Store store = Store.fromEnvironment(work)) {
            EndToEndTest test = new EndToEndTest(work, store);
            scenarios = test.scenarios;
            System.out.println("store   " + store.description());
            System.out.println("broker  Kafka " + Project.kafkaVersion() + ", records from seed " + test.generator.seed());
            try {
                test.run();
            } finally {
                test.release();
            }
        } catch (RuntimeException failure) {
            System.out.println("FAIL  the end-to-end test could not run: " + failure);
            work.finish(false);
            System.out.println("0 passed, 1 failed");
            System.exit(1);
            return;
        }
        work.finish(scenarios.failed() == 0);
        System.out.println(scenarios.passed() + " passed, " + scenarios.failed() + " failed");
        System.exit(scenarios.failed() == 0 ? 0 : 1);
    }

    private void run() {
        scenarios.run("a broker starts with the plugin on its own class path", this::startBroker);
        scenarios.run("closed segments reach the store byte for byte and leave the local disk", this::tier);
        scenarios.run("everything reads back from offset 0", this::readBack);
        scenarios.run("a second consumer, in a group, reads the same", this::readAsGroup);
        scenarios.run("seeking by time finds the right records in the tiered part", this::seekByTime);
        scenarios.run("read_committed leaves out the aborted transactions in the tiered part", this::transactions);
        scenarios.run("batches of every codec come back as they were written", this::codecs);
        scenarios.run("the MBeans count what was copied and fetched", this::metrics);
        scenarios.run("after kill -9 and a new start everything still reads back", this::killAndRestart);
        scenarios.run("DeleteRecords takes the segments before the offset out of the store", this::deleteRecords);
        scenarios.run("retention by size keeps so many bytes, the newest", this::retentionBySize);
        scenarios.run("retention by time takes everything out of the store", this::retentionByTime);
        scenarios.run("tiering switched off with delete.on.disable empties the store", this::disable);
        scenarios.run("deleting the topics empties the store", this::deleteTopics);
        scenarios.run("an unknown configuration key is refused by name", this::unknownKey);
        if (store.isS3()) {
            scenarios.run("a wrong secret is refused, naming the key", this::wrongSecret);
            scenarios.run("an endpoint where nothing listens is refused, naming the key", this::unreachableEndpoint);
        } else {
            scenarios.run("a path that is no directory is refused, naming the key", this::pathIsFile);
        }
        scenarios.run("the broker shuts down in order on SIGTERM", this::shutDown);
        scenarios.run("the broker's log has no error about tiering", this::noErrors);
        scenarios.run("no secret is in any log", this::noSecrets);
    }

    private void release() {
        if (segments != null) {
            segments.close();
        }
        if (topic != null) {
            topic.close();
        }
        if (broker != null) {
            broker.close();
        }
    }

    private void startBroker() {
        broker = new KafkaBroker(work.directory("broker"), store.pluginSettings()).start();
    }

    private KafkaBroker broker() {
        Scenarios.require(broker != null, "there is a broker");
        return broker;
    }

    private Topic topic() {
        Scenarios.require(produced != null, "the topic was produced");
        return topic;
    }

    private Workload workload() {
        return new Workload(broker().bootstrapServers(), generator);
    }

    private void tier() {
        topic = Topic.create(broker(), "events", PARTITIONS, SEGMENT_BYTES);
        segments = new LocalSegments(broker, topic, work.directory("local-copies"));
        produced = workload().produce(topic, DATA_BYTES, ignored -> { });
        Await.until("all closed segments in the store and off the local disk", TIERING_LIMIT,
                () -> segments.allTiered(store.view()));
        Scenarios.require(segments.rolled().size() >= DATA_BYTES / SEGMENT_BYTES - PARTITIONS, "there are enough segments: "
                + segments.rolled().size());
        long[] earliestLocal = topic.earliestLocalOffsets();
        Scenarios.require(Arrays.stream(earliestLocal).allMatch(offset -> offset > 0),
                "the earliest local offsets are above 0: " + Arrays.toString(earliestLocal));
        List<String> differences = segments.differencesTo(store.view());
        Scenarios.require(differences.isEmpty(), "the objects are the broker's files: " + differences);
    }

    private void readBack() {
        requireRead(workload().readAll(topic(), ignored -> { }), produced);
    }

    private void readAsGroup() {
        requireRead(workload().readAllAsGroup(topic(), "second-reader"), produced);
    }

    private static void requireRead(Workload.ReadResult result, List<RecordDigest> written) {
        Scenarios.require(result.matches(written),
                "all records are as produced: read " + result.digests() + ", produced " + written + ", " + result.differences());
    }

    private void seekByTime() {
        long[] earliestLocal = topic().earliestLocalOffsets();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            for (int step = 0; step <= 5; step++) {
                long index = (earliestLocal[partition] - 1) * step / 5;
                String fault = workload().seekByTime(topic, partition, index);
                Scenarios.require(fault == null, "the seek ends right: " + fault);
            }
        }
    }

    private void transactions() {
        try (Topic payments = Topic.create(broker(), "payments", 1, SEGMENT_BYTES)) {
            TransactionalWorkload transactions = new TransactionalWorkload(broker.bootstrapServers(), generator);
            transactions.produce(payments, TRANSACTIONS);
            // What aborts in the last, active segment stays local: at least the older half must have left the disk.
            Await.until("half of the transactions off the local disk", TIERING_LIMIT,
                    () -> payments.earliestLocalOffsets()[0] > transactions.lastAbortedOffset() / 2);
            Scenarios.require(transactions.read(payments, "read_uncommitted").equals(transactions.allKeys()),
                    "read_uncommitted gives every record");
            Scenarios.require(transactions.read(payments, "read_committed").equals(transactions.committedKeys()),
                    "read_committed gives the committed records and no other");
        }
    }

    private void codecs() throws IOException {
        try (Topic compressed = Topic.create(broker(), COMPRESSED_TOPIC, 1, SEGMENT_BYTES)) {
            // Uncompressed last: what is left in the active segment is of these.
            List<RecordDigest> written = workload().produceCompressed(compressed, StoredBatches.CODECS, CODEC_BYTES);
            long lastCompressed = written.get(0).records() * (StoredBatches.CODECS.size() - 1) / StoredBatches.CODECS.size();
            Await.until("the compressed batches off the local disk", TIERING_LIMIT,
                    () -> compressed.earliestLocalOffsets()[0] > lastCompressed);
            requireRead(workload().readAll(compressed, ignored -> { }), written);
            Set<String> stored = StoredBatches.codecs(store.view(), compressed);
            Scenarios.require(stored.equals(Set.copyOf(StoredBatches.CODECS)), "each codec is in the store: " + stored);
        }
    }

    private void metrics() {
        try (PluginMetrics metrics = new PluginMetrics(broker())) {
            OptionalDouble copied = metrics.read("copy", "segments_total");
            Scenarios.require(copied.isPresent() && copied.getAsDouble() >= segments.rolled().size(),
                    "copy.segments_total is at least " + segments.rolled().size() + ": " + copied);
            OptionalDouble fetched = metrics.read("fetch", "bytes_total");
            long local = segments.rolled().size() * (long) SEGMENT_BYTES / 2;
            Scenarios.require(fetched.isPresent() && fetched.getAsDouble() > local,
                    "fetch.bytes_total is above " + local + ": " + fetched);
        }
    }

    private void killAndRestart() {
        broker().kill();
        broker.start();
        requireRead(workload().readAll(topic(), ignored -> { }), produced);
    }

    private void deleteRecords() {
        long offset = topic().earliestLocalOffsets()[0] / 2;
        topic.deleteRecords(0, offset);
        Scenarios.require(topic.earliestOffsets()[0] == offset, "the partition begins at the offset");
        List<Long> kept = segments.rolledBaseOffsets(0);
        long first = kept.stream().filter(base -> base <= offset).reduce((earlier, later) -> later).orElseThrow();
        Scenarios.require(first > 0, "there are segments before the offset");
        kept.removeIf(base -> base < first);
        Await.until("only the segments from the offset on in the store", DELETE_LIMIT,
                () -> segments.baseOffsetsInStore(store.view(), 0).equals(kept));
        requireReadFromBeginning(topic);
    }

    private void retentionBySize() {
        long most = 5L * SEGMENT_BYTES;
        topic().alter(Map.of("retention.bytes", String.valueOf(most)));
        Await.until("no more than retention.bytes of each partition in the store", DELETE_LIMIT,
                () -> IntStream.range(0, PARTITIONS).allMatch(partition -> segments.bytesInStore(store.view(), partition) <= most));
        for (int partition = 0; partition < PARTITIONS; partition++) {
            List<Long> rolled = segments.rolledBaseOffsets(partition);
            List<Long> stored = segments.baseOffsetsInStore(store.view(), partition);
            Scenarios.require(stored.size() >= 3, "no more went than had to: " + stored);
            Scenarios.require(stored.equals(rolled.subList(rolled.size() - stored.size(), rolled.size())),
                    "the newest are left: " + stored);
        }
        requireReadFromBeginning(topic);
    }

    private void requireReadFromBeginning(Topic any) {
        long[] first = any.earliestOffsets();
        Workload.ReadResult result = workload().readFrom(any, first, ignored -> { });
        long wanted = Arrays.stream(any.endOffsets()).sum() - Arrays.stream(first).sum();
        Scenarios.require(result.differences().isEmpty() && result.records() == wanted && wanted > 0,
                "all records from " + Arrays.toString(first) + " on are as produced: " + result.differences());
    }

    private void retentionByTime() {
        // The records' timestamps are long past, so this is the end of all of them, those in the active segment too.
        topic().alter(Map.of("retention.ms", "1000", "local.retention.ms", "-2"));
        Await.until("no segment of the topic in the store", DELETE_LIMIT,
                () -> store.view().list().keySet().stream().noneMatch(topic::owns));
        Await.until("an empty topic", DELETE_LIMIT, () -> Arrays.equals(topic.earliestOffsets(), topic.endOffsets()));
        // Offsets go on where they were.
        long[] ends = topic.endOffsets();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            Scenarios.require(ends[partition] == produced.get(partition).records(), "no offset is lost: " + Arrays.toString(ends));
        }
    }

    private void disable() {
        try (Topic compressed = Topic.existing(broker(), COMPRESSED_TOPIC, 1)) {
            long firstLocal = compressed.earliestLocalOffsets()[0];
            Scenarios.require(inStore(compressed) && compressed.earliestOffsets()[0] == 0, "it is tiered");
            compressed.alter(Map.of("remote.storage.enable", "false", "remote.log.delete.on.disable", "true"));
            Await.until("nothing of the topic in the store", DELETE_LIMIT, () -> !inStore(compressed));
            Await.until("a topic that begins with its local part", DELETE_LIMIT,
                    () -> compressed.earliestOffsets()[0] == firstLocal);
            requireReadFromBeginning(compressed);
        }
    }

    private boolean inStore(Topic any) {
        return store.view().list().keySet().stream().anyMatch(any::owns);
    }

    private void deleteTopics() {
        Scenarios.require(!store.view().list().isEmpty(), "there is something in the store");
        topic().delete();
        for (String name : List.of("payments", COMPRESSED_TOPIC)) {
            try (Topic other = Topic.existing(broker, name, 1)) {
                other.delete();
            }
        }
        Await.until("an empty store", DELETE_LIMIT, () -> store.view().list().isEmpty());
    }

    private void unknownKey() {
        Map<String, String> settings = store.pluginSettings();
        settings.put("chunk.size.byte", "1048576");
        requireRefusal("unknown-key", settings, "chunk.size.byte");
    }

    private void wrongSecret() {
        Map<String, String> settings = store.pluginSettings();
        settings.put("s3.secret.access.key", new StringBuilder(settings.get("s3.secret.access.key")).reverse().toString());
        requireRefusal("wrong-secret", settings, "s3.secret.access.key");
    }

    private void unreachableEndpoint() {
        Map<String, String> settings = store.pluginSettings();
        settings.put("s3.endpoint", "http://127.0.0.1:" + FreePort.one());
        requireRefusal("unreachable", settings, "s3.endpoint");
    }

    private void pathIsFile() throws IOException {
        Path file = Files.createFile(work.path().resolve("not-a-directory"));
        Map<String, String> settings = store.pluginSettings();
        settings.put("file.path", file.toString());
        requireRefusal("path-is-file", settings, "file.path");
    }

    private void requireRefusal(String name, Map<String, String> settings, String key) {
        try (KafkaBroker refused = new KafkaBroker(work.directory("broker-" + name), settings)) {
            Integer status = refused.startExpectingExit(REFUSAL_LIMIT);
            Scenarios.require(status != null, "the broker ends within " + REFUSAL_LIMIT.toSeconds() + " s");
            Scenarios.require(status != 0, "the broker ends with an error");
            List<String> lines = refused.everythingWritten().lines().filter(line -> line.contains("ConfigException")).toList();
            Scenarios.require(lines.stream().anyMatch(line -> line.contains(key)),
                    "a ConfigException names " + key + ": " + lines.stream().limit(3).toList());
            String secret = settings.get("s3.secret.access.key");
            Scenarios.require(secret == null || !refused.everythingWritten().contains(secret), "the secret is in no log line");
        }
    }

    private void shutDown() {
        Scenarios.require(broker().isAlive(), "the broker still runs");
        Scenarios.require(broker.stop(), "the broker ends by itself");
        Scenarios.require(!broker.log().contains("Fatal error"), "the log has no fatal error");
    }

    private void noErrors() {
        List<String> errors = broker().log().tieringErrors();
        Scenarios.require(errors.isEmpty(), errors.size() + " errors, the first: " + errors.stream().limit(3).toList());
        Scenarios.require(!broker.log().pluginLines().isEmpty(), "the plugin's own events are in the broker's log");
    }

    private void noSecrets() {
        String written = broker().everythingWritten();
        Scenarios.require(store.secrets().stream().noneMatch(written::contains), "no log line has the secret");
    }
}

package io.alluvium.e2e;

import io.alluvium.harness.HarnessException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** One tiered topic, through Kafka's admin client: make it, ask where its local part begins, delete it. */
final class Topic implements AutoCloseable {
    private static final Duration LIMIT = Duration.ofSeconds(30);

    private final String name;
    private final int partitions;
    private final Admin admin;

    private Topic(String name, int partitions, Admin admin) {
        this.name = name;
        this.partitions = partitions;
        this.admin = admin;
    }

    /**
     * Creates a tiered topic that keeps only the active segments on the local disk. Local retention goes by size: by
     * time, Kafka would also roll active segments, and the records' timestamps would decide the size of segments.
     */
    static Topic create(KafkaBroker broker, String name, int partitions, int segmentBytes) {
        Topic topic = existing(broker, name, partitions);
        Map<String, String> settings = Map.of(
                "remote.storage.enable", "true",
                "segment.bytes", String.valueOf(segmentBytes),
                "retention.ms", "-1",
                "local.retention.ms", "-1",
                "local.retention.bytes", "1",
                "file.delete.delay.ms", "500");
        NewTopic wanted = new NewTopic(name, partitions, (short) 1).configs(settings);
        await("creating topic " + name, topic.admin.createTopics(List.of(wanted)).all());
        return topic;
    }

    /** A topic that is already there. */
    static Topic existing(KafkaBroker broker, String name, int partitions) {
        return new Topic(name, partitions, Admin.create(Map.of(
                AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, broker.bootstrapServers(),
                AdminClientConfig.DEFAULT_API_TIMEOUT_MS_CONFIG, (int) LIMIT.toMillis())));
    }

    String name() {
        return name;
    }

    /** Whether an object is one of the topic's. */
    boolean owns(String key) {
        return key.contains("/" + name + "/");
    }

    int partitions() {
        return partitions;
    }

    List<TopicPartition> topicPartitions() {
        return IntStream.range(0, partitions).mapToObj(index -> new TopicPartition(name, index)).toList();
    }

    /** For each partition, the first offset that is still on the local disk. */
    long[] earliestLocalOffsets() {
        return offsets(OffsetSpec.earliestLocal());
    }

    long[] earliestOffsets() {
        return offsets(OffsetSpec.earliest());
    }

    long[] endOffsets() {
        return offsets(OffsetSpec.latest());
    }

    /** For each partition, the first offset whose timestamp is the given one or later. */
    long[] offsetsForTime(long timestampMillis) {
        return offsets(OffsetSpec.forTimestamp(timestampMillis));
    }

    /** Changes settings of the topic. */
    void alter(Map<String, String> settings) {
        List<AlterConfigOp> changes = settings.entrySet().stream()
                .map(setting -> new AlterConfigOp(new ConfigEntry(setting.getKey(), setting.getValue()), OpType.SET))
                .toList();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        await("changing topic " + name, admin.incrementalAlterConfigs(Map.of(resource, changes)).all());
    }

    /** Deletes the records of a partition before the offset. */
    void deleteRecords(int partition, long beforeOffset) {
        Map<TopicPartition, RecordsToDelete> wanted =
                Map.of(new TopicPartition(name, partition), RecordsToDelete.beforeOffset(beforeOffset));
        await("deleting records of " + name, admin.deleteRecords(wanted).all());
    }

    void delete() {
        await("deleting topic " + name, admin.deleteTopics(List.of(name)).all());
    }

    @Override
    public void close() {
        admin.close(Duration.ofSeconds(5));
    }

    private long[] offsets(OffsetSpec specification) {
        Map<TopicPartition, OffsetSpec> question = new HashMap<>();
        topicPartitions().forEach(partition -> question.put(partition, specification));
        var answer = await("listing offsets of " + name, admin.listOffsets(question).all());
        long[] offsets = new long[partitions];
        answer.forEach((partition, result) -> offsets[partition.partition()] = result.offset());
        return offsets;
    }

    private static <T> T await(String what, KafkaFuture<T> future) {
        try {
            return future.get(LIMIT.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException failure) {
            throw new HarnessException(what + " failed: " + failure.getCause(), failure.getCause());
        } catch (TimeoutException failure) {
            throw new HarnessException(what + " took over " + LIMIT.toSeconds() + " s", failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted while " + what, interrupted);
        }
    }
}

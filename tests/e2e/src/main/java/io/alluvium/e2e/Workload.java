package io.alluvium.e2e;

import io.alluvium.harness.Await;
import io.alluvium.harness.HarnessException;
import io.alluvium.harness.RecordGenerator;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongConsumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes generated records to a topic and reads them back, comparing every one with the record generated again.
 *
 * <p>Invariant: the record with index n of a partition has offset n there, since one idempotent producer writes each
 * partition in order and nothing else writes.
 */
final class Workload {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final Duration IDLE_LIMIT = Duration.ofSeconds(60);
    private static final int MOST_DIFFERENCES_TOLD = 5;

    private final String bootstrapServers;
    private final RecordGenerator generator;

    Workload(String bootstrapServers, RecordGenerator generator) {
        this.bootstrapServers = bootstrapServers;
        this.generator = generator;
    }

    /** Writes records until their keys and values amount to the size; the digest of each partition. */
    List<RecordDigest> produce(Topic topic, long bytes, LongConsumer progress) {
        List<RecordDigest> digests = newDigests(topic.partitions());
        produceMore(topic, "none", bytes, digests, progress);
        return digests;
    }

    /** Writes as many bytes of records with each codec in turn, one after the other into the same partitions. */
    List<RecordDigest> produceCompressed(Topic topic, List<String> codecs, long bytesEach) {
        List<RecordDigest> digests = newDigests(topic.partitions());
        codecs.forEach(codec -> produceMore(topic, codec, bytesEach, digests, ignored -> { }));
        return digests;
    }

    private void produceMore(Topic topic, String codec, long bytes, List<RecordDigest> digests, LongConsumer progress) {
        AtomicReference<Exception> failure = new AtomicReference<>();
        long produced = 0;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(producerSettings(codec),
                new ByteArraySerializer(), new ByteArraySerializer())) {
            for (long index = digests.get(0).records(); produced < bytes; index++) {
                for (int partition = 0; partition < topic.partitions(); partition++) {
                    produced += send(producer, topic, partition, index, digests.get(partition), failure);
                }
                progress.accept(produced);
            }
            producer.flush();
        }
        if (failure.get() != null) {
            throw new HarnessException("producing failed", failure.get());
        }
    }

    private long send(KafkaProducer<byte[], byte[]> producer, Topic topic, int partition, long index,
            RecordDigest digest, AtomicReference<Exception> failure) {
        byte[] key = generator.key(partition, index);
        byte[] value = generator.value(partition, index);
        long timestamp = generator.timestamp(index);
        digest.add(index, timestamp, key, value);
        producer.send(new ProducerRecord<>(topic.name(), partition, timestamp, key, value), (metadata, exception) -> {
            if (exception != null) {
                failure.compareAndSet(null, exception);
            } else if (metadata.offset() != index) {
                failure.compareAndSet(null, new HarnessException(
                        "record " + index + " of partition " + partition + " got offset " + metadata.offset()));
            }
        });
        return key.length + value.length;
    }

    /**
     * What a full read found.
     *
     * @param differences the first few records that were not as produced, in words
     */
    record ReadResult(List<RecordDigest> digests, List<String> differences, Duration took) {
        long records() {
            return digests.stream().mapToLong(RecordDigest::records).sum();
        }

        long bytes() {
            return digests.stream().mapToLong(RecordDigest::bytes).sum();
        }

        boolean matches(List<RecordDigest> produced) {
            boolean same = differences.isEmpty() && digests.size() == produced.size();
            for (int partition = 0; same && partition < produced.size(); partition++) {
                same = digests.get(partition).sameAs(produced.get(partition));
            }
            return same;
        }
    }

    /** Reads everything from offset 0 to the end, partitions assigned by hand. */
    ReadResult readAll(Topic topic, LongConsumer progress) {
        return readFrom(topic, new long[topic.partitions()], progress);
    }

    /** Reads everything from the given offset of each partition to the end. */
    ReadResult readFrom(Topic topic, long[] first, LongConsumer progress) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
            consumer.assign(topic.topicPartitions());
            topic.topicPartitions().forEach(partition -> consumer.seek(partition, first[partition.partition()]));
            return read(consumer, topic, first, progress);
        }
    }

    /** Reads everything as a member of a consumer group that has no position yet. */
    ReadResult readAllAsGroup(Topic topic, String group) {
        try (KafkaConsumer<byte[], byte[]> consumer =
                consumer(Map.of("group.id", group, "auto.offset.reset", "earliest"))) {
            consumer.subscribe(List.of(topic.name()));
            return read(consumer, topic, new long[topic.partitions()], ignored -> { });
        }
    }

    private ReadResult read(KafkaConsumer<byte[], byte[]> consumer, Topic topic, long[] first, LongConsumer progress) {
        long started = System.nanoTime();
        long wanted = Arrays.stream(topic.endOffsets()).sum() - Arrays.stream(first).sum();
        List<RecordDigest> digests = newDigests(topic.partitions());
        List<String> differences = new ArrayList<>();
        long records = 0;
        long bytes = 0;
        long lastNews = System.nanoTime();
        while (records < wanted) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                compare(record, first[record.partition()], digests.get(record.partition()), differences);
                records++;
                bytes += record.key().length + record.value().length;
                lastNews = System.nanoTime();
            }
            progress.accept(bytes);
            if (System.nanoTime() - lastNews > IDLE_LIMIT.toNanos()) {
                differences.add("nothing came for " + IDLE_LIMIT.toSeconds() + " s: " + records + " of " + wanted + " records read");
                break;
            }
        }
        return new ReadResult(digests, differences, Duration.ofNanos(System.nanoTime() - started));
    }

    private void compare(
            ConsumerRecord<byte[], byte[]> record, long first, RecordDigest digest, List<String> differences) {
        long index = first + digest.records();
        int partition = record.partition();
        boolean same = record.offset() == index
                && record.timestamp() == generator.timestamp(index)
                && Arrays.equals(record.key(), generator.key(partition, index))
                && Arrays.equals(record.value(), generator.value(partition, index));
        if (!same && differences.size() < MOST_DIFFERENCES_TOLD) {
            differences.add("partition " + partition + ": expected record " + index + ", got offset " + record.offset()
                    + (record.offset() == index ? " with other content" : ""));
        }
        digest.add(record.offset(), record.timestamp(), record.key(), record.value());
    }

    /**
     * Seeks a partition to the time of the record with this index, and reads there.
     *
     * @return null when the first record read is that one, else what was wrong
     */
    String seekByTime(Topic topic, int partition, long index) {
        TopicPartition target = new TopicPartition(topic.name(), partition);
        // One millisecond after the record before: the answer must be the first record at or after, not the nearest.
        long timestamp = index == 0 ? generator.timestamp(0) : generator.timestamp(index - 1) + 1;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("max.poll.records", "1"))) {
            consumer.assign(List.of(target));
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(target, timestamp)).get(target);
            if (found == null || found.offset() != index) {
                return "time " + timestamp + " should be offset " + index + ", not " + found;
            }
            consumer.seek(target, found.offset());
            AtomicReference<ConsumerRecord<byte[], byte[]>> first = new AtomicReference<>();
            Await.until("a record at offset " + index, IDLE_LIMIT, () -> {
                consumer.poll(POLL).forEach(record -> first.compareAndSet(null, record));
                return first.get() != null;
            });
            ConsumerRecord<byte[], byte[]> record = first.get();
            boolean same = record.offset() == index && record.timestamp() == generator.timestamp(index)
                    && Arrays.equals(record.value(), generator.value(partition, index));
            return same ? null : "the record at time " + timestamp + " is not record " + index;
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", bootstrapServers,
                "enable.auto.commit", "false",
                "auto.offset.reset", "none",
                "max.poll.records", "5000"));
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Map<String, Object> producerSettings(String codec) {
        return Map.of(
                "bootstrap.servers", bootstrapServers,
                "compression.type", codec,
                "acks", "all",
                "enable.idempotence", "true",
                "batch.size", "65536",
                "linger.ms", "5");
    }

    private static List<RecordDigest> newDigests(int partitions) {
        List<RecordDigest> digests = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            digests.add(new RecordDigest());
        }
        return digests;
    }
}

package io.alluvium.e2e;

import io.alluvium.harness.Await;
import io.alluvium.harness.RecordGenerator;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions on partition 0 of a topic, every third of them aborted: what a reader at each isolation level must see.
 * Records are told apart by their key, which carries the index.
 */
final class TransactionalWorkload {
    private static final int RECORDS_A_TRANSACTION = 100;
    private static final Duration POLL = Duration.ofMillis(500);
    private static final Duration IDLE_LIMIT = Duration.ofSeconds(60);

    private final String bootstrapServers;
    private final RecordGenerator generator;
    private final List<String> committedKeys = new ArrayList<>();
    private final List<String> allKeys = new ArrayList<>();
    private long lastAbortedOffset = -1;

    TransactionalWorkload(String bootstrapServers, RecordGenerator generator) {
        this.bootstrapServers = bootstrapServers;
        this.generator = generator;
    }

    void produce(Topic topic, int transactions) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrapServers,
                "transactional.id", "e2e-" + topic.name(),
                "acks", "all");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (int transaction = 0; transaction < transactions; transaction++) {
                produceOne(producer, topic, transaction);
            }
        }
    }

    private void produceOne(KafkaProducer<byte[], byte[]> producer, Topic topic, int transaction) {
        boolean abort = transaction % 3 == 1;
        producer.beginTransaction();
        for (int record = 0; record < RECORDS_A_TRANSACTION; record++) {
            long index = (long) transaction * RECORDS_A_TRANSACTION + record;
            byte[] key = generator.key(0, index);
            producer.send(new ProducerRecord<>(topic.name(), 0, generator.timestamp(index), key, generator.value(0, index)));
            allKeys.add(new String(key));
            if (!abort) {
                committedKeys.add(new String(key));
            }
        }
        producer.flush();
        if (abort) {
            // Every transaction so far left its records and one marker.
            lastAbortedOffset = (long) (transaction + 1) * (RECORDS_A_TRANSACTION + 1) - 1;
            producer.abortTransaction();
        } else {
            producer.commitTransaction();
        }
    }

    /** The offset of the marker that ends the last aborted transaction. */
    long lastAbortedOffset() {
        return lastAbortedOffset;
    }

    List<String> committedKeys() {
        return committedKeys;
    }

    List<String> allKeys() {
        return allKeys;
    }

    /** The keys that a reader at this isolation level gets from offset 0 to the end. */
    List<String> read(Topic topic, String isolationLevel) {
        Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", bootstrapServers,
                "isolation.level", isolationLevel,
                "enable.auto.commit", "false",
                "auto.offset.reset", "none"));
        TopicPartition partition = new TopicPartition(topic.name(), 0);
        List<String> keys = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = topic.endOffsets()[0];
            Await.until("the end of " + topic.name() + " at offset " + end, IDLE_LIMIT, () -> {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    keys.add(new String(record.key()));
                }
                return consumer.position(partition) >= end;
            });
        }
        return keys;
    }
}

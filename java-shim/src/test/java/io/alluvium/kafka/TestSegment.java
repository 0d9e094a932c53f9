package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;

/** Files of a segment made up of random bytes, and what Kafka would say of them. */
final class TestSegment {
    private static final long SEED = 7;

    final byte[] log;
    final Map<IndexType, byte[]> indexes = new TreeMap<>();
    final RemoteLogSegmentMetadata metadata;
    final LogSegmentData data;

    private TestSegment(Path folder, byte[] log, int indexBytes, boolean transactionIndex) throws IOException {
        Random random = new Random(SEED + log.length);
        this.log = log;
        Files.createDirectories(folder);
        Path logFile = Files.write(folder.resolve("00000000000000000100.log"), log);
        Path offsets = index(folder, ".index", IndexType.OFFSET, random, indexBytes);
        Path times = index(folder, ".timeindex", IndexType.TIMESTAMP, random, indexBytes);
        Path producers = index(folder, ".snapshot", IndexType.PRODUCER_SNAPSHOT, random, indexBytes);
        Optional<Path> transactions = transactionIndex
            ? Optional.of(index(folder, ".txnindex", IndexType.TRANSACTION, random, indexBytes))
            : Optional.empty();
        byte[] epochs = "0\n1\n0 100\n".getBytes(StandardCharsets.UTF_8);
        indexes.put(IndexType.LEADER_EPOCH, epochs);
        this.data = new LogSegmentData(logFile, offsets, times, transactions, producers, ByteBuffer.wrap(epochs));
        this.metadata = metadata(log.length);
    }

    private Path index(Path folder, String ending, IndexType type, Random random, int length) throws IOException {
        byte[] content = new byte[length];
        random.nextBytes(content);
        indexes.put(type, content);
        return Files.write(folder.resolve("00000000000000000100" + ending), content);
    }

    static TestSegment of(Path folder, int size) throws IOException {
        return new TestSegment(folder, bytes(size), 1000, true);
    }

    static TestSegment withoutTransactionIndex(Path folder, int size) throws IOException {
        return new TestSegment(folder, bytes(size), 1000, false);
    }

    static TestSegment withEmptyIndexes(Path folder, int size) throws IOException {
        return new TestSegment(folder, bytes(size), 0, true);
    }

    private static byte[] bytes(int size) {
        byte[] log = new byte[size];
        new Random(SEED).nextBytes(log);
        return log;
    }

    static RemoteLogSegmentMetadata metadata(int size) {
        TopicIdPartition partition = new TopicIdPartition(Uuid.randomUuid(), new TopicPartition("orders", 3));
        return new RemoteLogSegmentMetadata(
            new RemoteLogSegmentId(partition, Uuid.randomUuid()), 100, 199, 1_700_000_000_000L, 1, 1_700_000_000_500L, size,
            Map.of(0, 100L));
    }

    /** The same segment as Kafka describes it once the copy has given {@code custom}. */
    static RemoteLogSegmentMetadata with(RemoteLogSegmentMetadata metadata, Optional<CustomMetadata> custom) {
        return new RemoteLogSegmentMetadata(
            metadata.remoteLogSegmentId(), metadata.startOffset(), metadata.endOffset(), metadata.maxTimestampMs(),
            metadata.brokerId(), metadata.eventTimestampMs(), metadata.segmentSizeInBytes(), custom,
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED, metadata.segmentLeaderEpochs());
    }

    static byte[] read(InputStream stream) throws IOException {
        try (stream) {
            return stream.readAllBytes();
        }
    }

    void assertReadableFrom(RemoteStorageManager manager) throws RemoteStorageException, IOException {
        assertArrayEquals(log, read(manager.fetchLogSegment(metadata, 0)));
        for (Map.Entry<IndexType, byte[]> index : indexes.entrySet()) {
            if (index.getKey() != IndexType.TRANSACTION || index.getValue().length > 0) {
                assertArrayEquals(index.getValue(), read(manager.fetchIndex(metadata, index.getKey())), index.getKey().name());
            }
        }
    }
}

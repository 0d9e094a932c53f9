package io.alluvium.kafka;

import static io.alluvium.kafka.TestSegment.read;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What holds on every store. */
abstract class StorageContract {
    private static final int MIB = 1024 * 1024;

    @TempDir
    Path folder;

    private AlluviumRemoteStorageManager manager;

    abstract Map<String, Object> configs() throws Exception;

    @BeforeEach
    void open() throws Exception {
        manager = Plugin.open(configs());
    }

    @AfterEach
    void close() {
        manager.close();
    }

    @Test
    void segmentsAndAllIndexesComeBackByteForByte() throws Exception {
        TestSegment segment = TestSegment.of(folder, 9 * MIB + 17);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        segment.assertReadableFrom(manager);
        assertEquals(5, segment.indexes.size());
    }

    @Test
    void aSegmentOfSeveralUploadPartsComesBack() throws Exception {
        TestSegment segment = TestSegment.of(folder, 40 * MIB + 1);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        segment.assertReadableFrom(manager);
    }

    @Test
    void aSegmentOfOneByteComesBack() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        segment.assertReadableFrom(manager);
    }

    @Test
    void emptyIndexesComeBackEmpty() throws Exception {
        TestSegment segment = TestSegment.withEmptyIndexes(folder, 1000);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        for (IndexType type : new IndexType[] {IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.PRODUCER_SNAPSHOT}) {
            assertEquals(0, read(manager.fetchIndex(segment.metadata, type)).length, type.name());
        }
    }

    @Test
    void aMissingTransactionIndexIsNotFound() throws Exception {
        TestSegment segment = TestSegment.withoutTransactionIndex(folder, 1000);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        segment.assertReadableFrom(manager);
        assertThrows(
            RemoteResourceNotFoundException.class, () -> manager.fetchIndex(segment.metadata, IndexType.TRANSACTION));
    }

    @Test
    void rangesIncludeTheirEndAndStopAtTheSegments() throws Exception {
        TestSegment segment = TestSegment.of(folder, 5 * MIB);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        int size = segment.log.length;
        int[][] ranges = {
            {0, 0}, {0, 16}, {1, 1}, {4 * MIB - 1, 4 * MIB}, {4 * MIB, 4 * MIB + 100}, {17, size - 1}, {size - 1, size - 1},
            {size - 5, size + 100}, {3, Integer.MAX_VALUE}
        };
        for (int[] range : ranges) {
            byte[] expected = Arrays.copyOfRange(segment.log, range[0], (int) Math.min(range[1] + 1L, size));
            byte[] actual = read(manager.fetchLogSegment(segment.metadata, range[0], range[1]));
            assertArrayEquals(expected, actual, Arrays.toString(range));
        }
        assertArrayEquals(
            Arrays.copyOfRange(segment.log, MIB, size), read(manager.fetchLogSegment(segment.metadata, MIB)));
    }

    @Test
    void aStartAtTheEndGivesNothingAndOneBeyondItFails() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        assertEquals(0, read(manager.fetchLogSegment(segment.metadata, 1000)).length);
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(segment.metadata, 1001));
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(segment.metadata, -1));
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(segment.metadata, -1, -1));
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(segment.metadata, 5, 4));
    }

    @Test
    void smallReadsSeeTheSameBytesAsLargeOnes() throws Exception {
        TestSegment segment = TestSegment.of(folder, 100_000);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        byte[] got = new byte[segment.log.length];
        int[] lengths = {1, 17, 511, 512, 513, 8191, 20_000};
        try (InputStream stream = manager.fetchLogSegment(segment.metadata, 0)) {
            int position = 0;
            for (int turn = 0; position < got.length; turn++) {
                if (turn % 3 == 0) {
                    got[position++] = (byte) stream.read();
                    continue;
                }
                int wanted = Math.min(lengths[turn % lengths.length], got.length - position);
                int taken = stream.read(got, position, wanted);
                assertTrue(taken > 0 || wanted == 0, "a read of " + wanted + " bytes gave " + taken);
                position += taken;
            }
            assertEquals(-1, stream.read());
            assertEquals(-1, stream.read(got, 0, 1));
            assertEquals(-1, stream.read(got, 0, 10_000));
            assertEquals(0, stream.read(got, 0, 0));
        }
        assertArrayEquals(segment.log, got);
    }

    @Test
    void whatWasNeverCopiedIsNotFound() {
        RemoteLogSegmentMetadata missing = TestSegment.metadata(1000);
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchLogSegment(missing, 0));
        for (IndexType type : IndexType.values()) {
            assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchIndex(missing, type), type.name());
        }
    }

    @Test
    void whatIsDeletedIsGoneAndCanBeDeletedAgain() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        RemoteLogSegmentMetadata copied =
            TestSegment.with(segment.metadata, manager.copyLogSegmentData(segment.metadata, segment.data));
        segment.assertReadableFrom(manager);
        manager.deleteLogSegmentData(copied);
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchLogSegment(copied, 0));
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchIndex(copied, IndexType.OFFSET));
        manager.deleteLogSegmentData(copied);
        manager.deleteLogSegmentData(TestSegment.metadata(5));
    }

    @Test
    void deletingNeedsNoCustomMetadata() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        manager.deleteLogSegmentData(segment.metadata);
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchLogSegment(segment.metadata, 0));
    }

    @Test
    void copyingAgainOverwrites() throws Exception {
        TestSegment first = TestSegment.of(folder.resolve("first"), 1000);
        TestSegment second = TestSegment.of(folder.resolve("second"), 1000);
        Files.write(second.data.logSegment(), new byte[1000]);
        manager.copyLogSegmentData(first.metadata, first.data);
        manager.copyLogSegmentData(first.metadata, second.data);
        assertArrayEquals(new byte[1000], read(manager.fetchLogSegment(first.metadata, 0)));
    }

    @Test
    void customMetadataFitsKafkasLimitAndIsUnderstoodAgain() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        Optional<CustomMetadata> custom = manager.copyLogSegmentData(segment.metadata, segment.data);
        assertTrue(custom.isPresent());
        assertTrue(custom.get().value().length < 128, () -> custom.get().value().length + " bytes");
        assertNotEquals(0, custom.get().value().length);
        RemoteLogSegmentMetadata copied = TestSegment.with(segment.metadata, custom);
        assertArrayEquals(segment.log, read(manager.fetchLogSegment(copied, 0)));
        assertArrayEquals(
            segment.indexes.get(IndexType.OFFSET), read(manager.fetchIndex(copied, IndexType.OFFSET)));
    }

    @Test
    void theLeaderEpochBufferIsLeftAsItWas() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        ByteBuffer epochs = ByteBuffer.wrap("xx0\n0\nyy".getBytes()).position(2).limit(6);
        LogSegmentData data = new LogSegmentData(segment.data.logSegment(), segment.data.offsetIndex(),
            segment.data.timeIndex(), segment.data.transactionIndex(), segment.data.producerSnapshotIndex(),
            epochs.asReadOnlyBuffer());
        manager.copyLogSegmentData(segment.metadata, data);
        assertEquals(2, data.leaderEpochIndex().position());
        assertArrayEquals(
            "0\n0\n".getBytes(), read(manager.fetchIndex(segment.metadata, IndexType.LEADER_EPOCH)));
    }

    @Test
    void aSegmentFileThatIsShorterThanAnnouncedFailsTheCopyAndLeavesNothing() throws Exception {
        TestSegment segment = TestSegment.of(folder, 2 * MIB);
        Files.write(segment.data.logSegment(), new byte[MIB]);
        assertThrows(
            RemoteStorageException.class, () -> manager.copyLogSegmentData(segment.metadata, segment.data));
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchLogSegment(segment.metadata, 0));
    }

    @Test
    void impossibleArgumentsAreRemoteStorageExceptions() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        Files.delete(segment.data.timeIndex());
        assertThrows(
            RemoteStorageException.class, () -> manager.copyLogSegmentData(segment.metadata, segment.data));
        assertThrows(RemoteStorageException.class, () -> manager.copyLogSegmentData(null, segment.data));
        assertThrows(RemoteStorageException.class, () -> manager.copyLogSegmentData(segment.metadata, null));
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(null, 0));
        assertThrows(RemoteStorageException.class, () -> manager.fetchIndex(segment.metadata, null));
        assertThrows(RemoteStorageException.class, () -> manager.deleteLogSegmentData(null));
    }

    @Test
    void aClosedStreamGivesAnIoExceptionAndClosesAgain() throws Exception {
        TestSegment segment = TestSegment.of(folder, 100_000);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        InputStream stream = manager.fetchLogSegment(segment.metadata, 0);
        assertEquals(segment.log[0], (byte) stream.read());
        stream.close();
        stream.close();
        assertThrows(IOException.class, () -> stream.read(new byte[1000], 0, 1000));
        assertThrows(IOException.class, () -> stream.read(new byte[10], 0, 10));
        assertEquals(0, stream.available());
    }
}

package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Random;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Segments do not pass through the Java heap. */
final class HeapTest {
    private static final int MIB = 1024 * 1024;

    @TempDir
    Path folder;

    @TempDir
    Path root;

    @Test
    void copyingAGigabyteAllocatesLessThanAMebibyte() throws Exception {
        int mebibytes = 1024;
        TestSegment small = TestSegment.of(folder, 1000);
        Path log = folder.resolve("large.log");
        byte[] piece = new byte[MIB];
        new Random(1).nextBytes(piece);
        try (OutputStream out = Files.newOutputStream(log)) {
            for (int written = 0; written < mebibytes; written++) {
                out.write(piece);
            }
        }
        LogSegmentData data = new LogSegmentData(log, small.data.offsetIndex(), small.data.timeIndex(),
            small.data.transactionIndex(), small.data.producerSnapshotIndex(), ByteBuffer.allocate(0));
        RemoteLogSegmentMetadata metadata = TestSegment.metadata(mebibytes * MIB);
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long self = Thread.currentThread().getId();
        try (AlluviumRemoteStorageManager manager = Plugin.open(Plugin.onDirectory(root))) {
            long before = threads.getThreadAllocatedBytes(self);
            manager.copyLogSegmentData(metadata, data);
            long allocated = threads.getThreadAllocatedBytes(self) - before;
            assertTrue(allocated < MIB, () -> allocated + " bytes of heap for " + mebibytes + " MiB");
            manager.deleteLogSegmentData(metadata);
        }
    }
}

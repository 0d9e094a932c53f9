package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertThrowsExactly;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import javax.management.ObjectName;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Which exception a failing store becomes, and that nothing is left behind by it. */
final class FailureTest {
    private static final String BROKER = "4713";
    private static final int MIB = 1024 * 1024;

    @TempDir
    Path folder;

    private S3Server server;
    private AlluviumRemoteStorageManager manager;
    private TestSegment segment;

    @BeforeEach
    void open() throws Exception {
        server = new S3Server();
        Map<String, Object> configs = server.configs();
        configs.put("broker.id", BROKER);
        configs.put("request.timeout.ms", "1000");
        configs.put("fetch.timeout.ms", "2000");
        configs.put("cache.memory.bytes", "0");
        manager = Plugin.open(configs);
        segment = TestSegment.of(folder, 9 * MIB);
        manager.copyLogSegmentData(segment.metadata, segment.data);
    }

    @AfterEach
    void close() {
        manager.close();
        server.close();
    }

    private static long openStreams() throws Exception {
        ObjectName name = new ObjectName("io.alluvium:type=fetch,broker=" + BROKER);
        return (Long) ManagementFactory.getPlatformMBeanServer().getAttribute(name, "streams_open");
    }

    private void unavailable(String operation) throws Exception {
        server.faults("[{\"op\": \"" + operation + "\", \"action\": {\"error\": {\"status\": 503, \"code\": \"SlowDown\"}}}]");
    }

    @Test
    void fetchesThatMaySucceedLaterAreRetriable() throws Exception {
        unavailable("GetObject");
        // Not the segment that was copied: what is known of it may be cached.
        RemoteLogSegmentMetadata other = TestSegment.metadata(1000);
        assertThrows(RetriableRemoteStorageException.class, () -> manager.fetchLogSegment(other, 0));
        assertThrows(RetriableRemoteStorageException.class, () -> manager.fetchIndex(other, IndexType.OFFSET));
    }

    @Test
    void copiesAndDeletesAreNeverRetriableSoThatKafkaCleansUp() throws Exception {
        unavailable("*");
        TestSegment small = TestSegment.of(folder.resolve("small"), 1000);
        assertThrowsExactly(
            RemoteStorageException.class, () -> manager.copyLogSegmentData(small.metadata, small.data));
        assertThrowsExactly(RemoteStorageException.class, () -> manager.deleteLogSegmentData(segment.metadata));
    }

    @Test
    void aCorruptSegmentIsAnIoExceptionAndItsStreamIsReleased() throws Exception {
        server.faults("[{\"op\": \"GetObject\", \"key_contains\": \".log\", \"action\": {\"corrupt_body\": {\"at\": 10}}}]");
        assertFails();
    }

    @Test
    void aSegmentCutShortIsAnIoExceptionAndNoEarlyEnd() throws Exception {
        server.faults("[{\"op\": \"GetObject\", \"key_contains\": \".log\", \"action\": {\"truncate_body\": {\"bytes\": 10}}}]");
        assertFails();
    }

    /** Neither opening nor reading may succeed; Kafka does not close a stream that failed. */
    private void assertFails() throws Exception {
        Exception failure = assertThrows(Exception.class, () -> {
            InputStream stream = manager.fetchLogSegment(segment.metadata, 0);
            stream.readAllBytes();
        });
        assertTrue(failure instanceof IOException || failure instanceof RemoteStorageException, failure::toString);
        assertEquals(0, openStreams());
        server.faults("[]");
        // What was corrupt is not asked for again within a second.
        Thread.sleep(1_100);
        segment.assertReadableFrom(manager);
    }

    @Test
    void aForgottenStreamIsReleased() throws Exception {
        for (int number = 0; number < 20; number++) {
            manager.fetchLogSegment(segment.metadata, number);
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (openStreams() > 0) {
            assertTrue(System.nanoTime() < deadline, "streams stay open");
            System.gc();
            Thread.sleep(20);
        }
    }
}

package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Kafka interrupts copies and deletes on leadership changes, and reads whose client has given up. */
final class InterruptTest {
    private static final int MIB = 1024 * 1024;

    @TempDir
    Path folder;

    private S3Server server;
    private AlluviumRemoteStorageManager manager;

    @BeforeEach
    void open() throws Exception {
        server = new S3Server();
        manager = Plugin.open(server.configs());
    }

    @AfterEach
    void close() {
        manager.close();
        server.close();
    }

    @Test
    void anInterruptedCopyEndsSoonAndLeavesNothing() throws Exception {
        TestSegment segment = TestSegment.of(folder, MIB);
        long before = server.counter("PutObject");
        server.faults("[{\"op\": \"PutObject\", \"times\": 1, \"action\": \"stall\"}]");
        Interrupted copy = new Interrupted(() -> manager.copyLogSegmentData(segment.metadata, segment.data));
        server.awaitCounter("PutObject", before + 1);
        copy.interrupt();
        assertInstanceOf(RemoteStorageException.class, copy.failure());
        assertTrue(copy.flagStillSet, "the interrupt is kept");
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchLogSegment(segment.metadata, 0));
    }

    @Test
    void anInterruptedMultipartCopyAbortsItsUpload() throws Exception {
        TestSegment segment = TestSegment.of(folder, 40 * MIB);
        long before = server.counter("UploadPart");
        server.faults("[{\"op\": \"UploadPart\", \"skip\": 1, \"times\": 1, \"action\": \"stall\"}]");
        Interrupted copy = new Interrupted(() -> manager.copyLogSegmentData(segment.metadata, segment.data));
        server.awaitCounter("UploadPart", before + 2);
        copy.interrupt();
        assertInstanceOf(RemoteStorageException.class, copy.failure());
        assertTrue(copy.flagStillSet, "the interrupt is kept");
        assertTrue(server.counter("AbortMultipartUpload") >= 1, "the upload is aborted");
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchLogSegment(segment.metadata, 0));
    }

    @Test
    void anInterruptedFetchEndsSoon() throws Exception {
        TestSegment segment = TestSegment.of(folder, MIB);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        long before = server.counter("GetObject");
        server.faults("[{\"op\": \"GetObject\", \"action\": \"stall\"}]");
        Interrupted fetch = new Interrupted(() -> {
            try (InputStream stream = manager.fetchLogSegment(segment.metadata, 0)) {
                return stream.read(new byte[MIB]);
            }
        });
        server.awaitCounter("GetObject", before + 1);
        fetch.interrupt();
        fetch.failure();
        assertTrue(fetch.flagStillSet, "the interrupt is kept");
    }

    @Test
    void anInterruptedReadEndsAtOnceAndTheStreamIsClosed() throws Exception {
        TestSegment segment = TestSegment.of(folder, 6 * MIB);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        InputStream stream = manager.fetchLogSegment(segment.metadata, 0);
        Interrupted read = new Interrupted(() -> {
            Thread.currentThread().interrupt();
            return stream.read(new byte[MIB]);
        });
        assertInstanceOf(InterruptedIOException.class, read.failure());
        assertTrue(read.flagStillSet, "the interrupt is kept");
        assertThrows(IOException.class, () -> stream.read(new byte[MIB]));
        segment.assertReadableFrom(manager);
    }

    @Test
    void anInterruptedDeleteEndsSoon() throws Exception {
        TestSegment segment = TestSegment.of(folder, MIB);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        long before = server.counter("DeleteObjects");
        server.faults("[{\"op\": \"DeleteObjects\", \"times\": 1, \"action\": \"stall\"}]");
        Interrupted delete = new Interrupted(() -> {
            manager.deleteLogSegmentData(segment.metadata);
            return null;
        });
        server.awaitCounter("DeleteObjects", before + 1);
        delete.interrupt();
        assertInstanceOf(RemoteStorageException.class, delete.failure());
        assertTrue(delete.flagStillSet, "the interrupt is kept");
        manager.deleteLogSegmentData(segment.metadata);
        assertThrows(RemoteResourceNotFoundException.class, () -> manager.fetchLogSegment(segment.metadata, 0));
    }

    /** A call on a thread of its own that is to fail. */
    private static final class Interrupted {
        private static final long LIMIT_MS = TimeUnit.SECONDS.toMillis(15);

        private final Thread thread;
        private volatile Throwable failure;
        private volatile boolean flagStillSet;

        Interrupted(Callable<?> call) {
            thread = new Thread(() -> {
                try {
                    call.call();
                } catch (Throwable thrown) {
                    failure = thrown;
                }
                flagStillSet = Thread.currentThread().isInterrupted();
            });
            thread.start();
        }

        void interrupt() {
            thread.interrupt();
        }

        Throwable failure() throws InterruptedException {
            thread.join(LIMIT_MS);
            assertTrue(!thread.isAlive(), "the call still runs " + LIMIT_MS + " ms after the interrupt");
            assertTrue(failure != null, "the call succeeded");
            return failure;
        }
    }
}

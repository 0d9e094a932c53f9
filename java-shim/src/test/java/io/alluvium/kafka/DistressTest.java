package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.ref.Reference;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import javax.management.ObjectName;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A virtual machine without memory, or with a broken log, sees failed calls and nothing worse. */
final class DistressTest {
    private static final int ROUNDS = 20;

    @TempDir
    Path folder;

    private void run(String how, String logFile) throws Exception {
        ProcessTest.run(DistressTest.class, folder, logFile, how);
    }

    @Test
    void theFirstCallsWithAFullHeapGiveRemoteStorageExceptions() throws Exception {
        run("cold", folder.resolve("log").toString());
    }

    @Test
    void aCopyThatFailsForWantOfMemoryHasEndedAndLeavesNothing() throws Exception {
        run("copies", folder.resolve("log").toString());
    }

    @Test
    void aFetchThatFailsForWantOfMemoryLeavesNoStreamOpen() throws Exception {
        run("fetches", folder.resolve("log").toString());
    }

    @Test
    void aBrokenLogDoesNotMakeOperationsFail() throws Exception {
        run("broken log", "System.err");
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        Path root = Files.createDirectories(folder.resolve("root"));
        TestSegment segment = TestSegment.of(folder.resolve("segment"), 100_000);
        if (arguments[0].equals("broken log")) {
            System.setErr(new BrokenStream());
        }
        try (AlluviumRemoteStorageManager manager = Plugin.open(Plugin.onDirectory(root))) {
            // The program's own failing must not be what needs memory.
            assertTrue(fails(() -> {
                throw new IOException();
            }, Integer.MAX_VALUE));
            switch (arguments[0]) {
                case "cold":
                    cold(manager, segment);
                    break;
                case "copies":
                    copies(manager, segment, root);
                    break;
                case "fetches":
                    fetches(manager, segment);
                    break;
                default:
            }
            manager.copyLogSegmentData(segment.metadata, segment.data);
            segment.assertReadableFrom(manager);
            assertEquals(0, gauge("fetch", "streams_open"));
        }
    }

    /** Every cell is taken, but for those that {@code spare} small objects had. */
    private static Object[] fullHeap(int spare) {
        Object[] held = null;
        for (int size = 1 << 20; size >= 8; size /= 2) {
            try {
                while (true) {
                    Object[] next = new Object[2];
                    next[1] = new byte[size];
                    next[0] = held;
                    held = next;
                }
            } catch (OutOfMemoryError full) {
                // The next smaller ones may still fit.
            }
        }
        for (int given = 0; given < spare && held != null; given++) {
            held = (Object[]) held[0];
        }
        return held;
    }

    private interface Call {
        void run() throws Exception;
    }

    /** Returns whether the call failed, as it may. */
    private static boolean fails(Call call, int spare) throws Exception {
        Throwable failure = null;
        Object[] held = fullHeap(spare);
        try {
            call.run();
        } catch (Throwable thrown) {
            failure = thrown;
        } finally {
            Reference.reachabilityFence(held);
            held = null;
        }
        if (failure != null && !(failure instanceof RemoteStorageException) && !(failure instanceof IOException)) {
            throw new AssertionError("with " + spare + " objects to spare", failure);
        }
        return failure != null;
    }

    private static void cold(AlluviumRemoteStorageManager manager, TestSegment segment) throws Exception {
        RemoteLogSegmentMetadata missing = TestSegment.metadata(10);
        Call[] calls = {
            () -> manager.copyLogSegmentData(segment.metadata, segment.data),
            () -> manager.fetchLogSegment(missing, 0),
            () -> manager.fetchLogSegment(missing, 5, 4),
            () -> manager.fetchIndex(missing, IndexType.OFFSET),
            () -> manager.deleteLogSegmentData(missing),
            () -> {
                try (InputStream stream = manager.fetchLogSegment(segment.metadata, 0)) {
                    stream.read();
                }
            },
        };
        int failed = 0;
        for (Call call : calls) {
            for (int spare = 0; spare < ROUNDS; spare += 4) {
                failed += fails(call, spare) ? 1 : 0;
            }
        }
        assertTrue(failed > 0, "the heap was never full");
    }

    private static void copies(AlluviumRemoteStorageManager manager, TestSegment segment, Path root) throws Exception {
        for (int round = 0; round < 2 * ROUNDS; round++) {
            RemoteLogSegmentMetadata metadata = TestSegment.metadata(segment.log.length);
            if (fails(() -> manager.copyLogSegmentData(metadata, segment.data), round)) {
                assertEquals(0, gauge("copy", "running"), "a copy that has thrown runs on");
                try (var files = Files.walk(root)) {
                    assertArrayEquals(new Path[0], files.filter(Files::isRegularFile).toArray(), "round " + round);
                }
            } else {
                manager.deleteLogSegmentData(metadata);
            }
        }
    }

    private static void fetches(AlluviumRemoteStorageManager manager, TestSegment segment) throws Exception {
        manager.copyLogSegmentData(segment.metadata, segment.data);
        for (int round = 0; round < 2 * ROUNDS; round++) {
            fails(() -> manager.fetchLogSegment(segment.metadata, 0).close(), round);
            assertEquals(0, gauge("fetch", "streams_open"), "round " + round);
        }
    }

    private static long gauge(String part, String name) throws Exception {
        ObjectName bean = new ObjectName("io.alluvium:type=" + part + ",broker=1");
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(1);
        long value;
        do {
            value = (Long) ManagementFactory.getPlatformMBeanServer().getAttribute(bean, name);
        } while (value > 0 && part.equals("fetch") && System.nanoTime() < deadline);
        return value;
    }

    private static final class BrokenStream extends PrintStream {
        BrokenStream() {
            super(new ByteArrayOutputStream());
        }

        @Override
        public void println(String line) {
            throw new IllegalStateException("the disk of the log is full");
        }

        @Override
        public void write(byte[] bytes, int offset, int length) {
            throw new IllegalStateException("the disk of the log is full");
        }
    }
}

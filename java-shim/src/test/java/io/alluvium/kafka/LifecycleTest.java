package io.alluvium.kafka;

import static io.alluvium.kafka.TestSegment.read;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.net.URLClassLoader;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

final class LifecycleTest {
    @TempDir
    Path folder;

    @TempDir
    Path root;

    @Test
    void beforeConfigureEveryCallFailsAndCloseDoesNothing() throws Exception {
        AlluviumRemoteStorageManager manager = new AlluviumRemoteStorageManager();
        assertEveryCallFails(manager);
        manager.close();
        manager.close();
        assertThrows(ConfigException.class, () -> manager.configure(Plugin.onDirectory(root)));
    }

    @Test
    void afterCloseEveryCallFailsAndStreamsGiveIoExceptions() throws Exception {
        TestSegment segment = TestSegment.of(folder, 100_000);
        AlluviumRemoteStorageManager manager = Plugin.open(Plugin.onDirectory(root));
        manager.copyLogSegmentData(segment.metadata, segment.data);
        InputStream stream = manager.fetchLogSegment(segment.metadata, 0);
        manager.close();
        manager.close();
        assertEveryCallFails(manager);
        assertThrows(IOException.class, () -> stream.read(new byte[1000]));
        stream.close();
        assertThrows(ConfigException.class, () -> manager.configure(Plugin.onDirectory(root)));
    }

    @Test
    void aClosedStreamGivesNoByteThatItStillHas() throws Exception {
        TestSegment segment = TestSegment.of(folder, 100_000);
        try (AlluviumRemoteStorageManager manager = Plugin.open(Plugin.onDirectory(root))) {
            manager.copyLogSegmentData(segment.metadata, segment.data);
            InputStream stream = manager.fetchLogSegment(segment.metadata, 0);
            assertEquals(segment.log[0] & 0xff, stream.read());
            stream.close();
            assertThrows(IOException.class, stream::read);
            assertThrows(IOException.class, () -> stream.read(new byte[10]));
            assertThrows(IOException.class, () -> stream.read(new byte[1000]));
        }
    }

    private void assertEveryCallFails(RemoteStorageManager manager) throws IOException {
        TestSegment segment = TestSegment.of(folder.resolve("other"), 10);
        assertThrows(RemoteStorageException.class, () -> manager.copyLogSegmentData(segment.metadata, segment.data));
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(segment.metadata, 0));
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(segment.metadata, 0, 5));
        assertThrows(RemoteStorageException.class, () -> manager.fetchIndex(segment.metadata, IndexType.OFFSET));
        assertThrows(RemoteStorageException.class, () -> manager.deleteLogSegmentData(segment.metadata));
    }

    @Test
    void errorsOfTheVirtualMachineAreRemoteStorageExceptionsToo() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        try (AlluviumRemoteStorageManager manager = Plugin.open(Plugin.onDirectory(root))) {
            RemoteLogSegmentMetadata endless = new EndlessMetadata(segment.metadata);
            assertCause(StackOverflowError.class, () -> manager.copyLogSegmentData(endless, segment.data));
            assertCause(StackOverflowError.class, () -> manager.fetchLogSegment(endless, 0));
            assertCause(StackOverflowError.class, () -> manager.fetchIndex(endless, IndexType.OFFSET));
            assertCause(StackOverflowError.class, () -> manager.deleteLogSegmentData(endless));
            LogSegmentData huge = new LogSegmentData(segment.data.logSegment(), segment.data.offsetIndex(),
                segment.data.timeIndex(), Optional.empty(), segment.data.producerSnapshotIndex(), largerThanTheHeap());
            assertCause(OutOfMemoryError.class, () -> manager.copyLogSegmentData(segment.metadata, huge));
            manager.copyLogSegmentData(segment.metadata, segment.data);
            segment.assertReadableFrom(manager);
        }
    }

    private static void assertCause(Class<? extends Error> cause, Executable call) {
        RemoteStorageException failure = assertThrows(RemoteStorageException.class, call);
        assertInstanceOf(cause, failure.getCause());
    }

    /** Costs no memory as long as nobody copies it. */
    private ByteBuffer largerThanTheHeap() throws IOException {
        long size = Math.min(Integer.MAX_VALUE - 8, Runtime.getRuntime().maxMemory() + 1024 * 1024);
        try (FileChannel sparse = FileChannel.open(
            folder.resolve("sparse"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            return sparse.map(FileChannel.MapMode.READ_WRITE, 0, size);
        }
    }

    private static final class EndlessMetadata extends RemoteLogSegmentMetadata {
        EndlessMetadata(RemoteLogSegmentMetadata like) {
            super(like.remoteLogSegmentId(), like.startOffset(), like.endOffset(), like.maxTimestampMs(), like.brokerId(),
                like.eventTimestampMs(), like.segmentSizeInBytes(), like.segmentLeaderEpochs());
        }

        @Override
        public NavigableMap<Integer, Long> segmentLeaderEpochs() {
            return segmentLeaderEpochs();
        }
    }

    @Test
    void aSecondConfigureIsRefusedAndTheInstanceGoesOn() throws Exception {
        TestSegment segment = TestSegment.of(folder, 10);
        try (AlluviumRemoteStorageManager manager = Plugin.open(Plugin.onDirectory(root))) {
            assertThrows(ConfigException.class, () -> manager.configure(Plugin.onDirectory(root)));
            manager.copyLogSegmentData(segment.metadata, segment.data);
            segment.assertReadableFrom(manager);
        }
    }

    @Test
    void instancesInOneClassLoaderAreIndependent() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        AlluviumRemoteStorageManager first = Plugin.open(Plugin.onDirectory(root));
        try (AlluviumRemoteStorageManager second = Plugin.open(Plugin.onDirectory(root))) {
            first.copyLogSegmentData(segment.metadata, segment.data);
            first.close();
            segment.assertReadableFrom(second);
        }
    }

    @Test
    void eachClassLoaderGetsALibraryOfItsOwn() throws Exception {
        TestSegment segment = TestSegment.of(folder, 1000);
        try (URLClassLoader one = Plugin.loader(Plugin.JAR); URLClassLoader two = Plugin.loader(Plugin.JAR)) {
            List<RemoteStorageManager> managers = List.of(Plugin.in(one), Plugin.in(two), new AlluviumRemoteStorageManager());
            assertNotSame(managers.get(0).getClass(), managers.get(1).getClass());
            for (RemoteStorageManager manager : managers) {
                manager.configure(Plugin.onDirectory(root));
            }
            managers.get(0).copyLogSegmentData(segment.metadata, segment.data);
            for (RemoteStorageManager manager : managers) {
                segment.assertReadableFrom(manager);
                manager.close();
            }
        }
    }

    @Test
    void twoClassLoadersMayNameTheSameLibraryFile() throws Exception {
        Path library = NativeLibraryTest.extracted(folder);
        Map<String, Object> configs = Plugin.onDirectory(root);
        configs.put("native.library.path", library.toString());
        TestSegment segment = TestSegment.of(folder, 1000);
        try (URLClassLoader one = Plugin.loader(Plugin.JAR); URLClassLoader two = Plugin.loader(Plugin.JAR)) {
            RemoteStorageManager first = Plugin.in(one);
            RemoteStorageManager second = Plugin.in(two);
            first.configure(configs);
            second.configure(configs);
            first.copyLogSegmentData(segment.metadata, segment.data);
            segment.assertReadableFrom(second);
            first.close();
            second.close();
        }
        assertTrue(Files.exists(library), "a file that the operator named is left alone");
    }

    @Test
    @Timeout(60)
    void closingWhileOthersReadEndsTheirCallsAndNothingElse() throws Exception {
        TestSegment segment = TestSegment.of(folder, 5 * 1024 * 1024);
        AlluviumRemoteStorageManager manager = Plugin.open(Plugin.onDirectory(root));
        manager.copyLogSegmentData(segment.metadata, segment.data);
        ConcurrentLinkedQueue<Throwable> unexpected = new ConcurrentLinkedQueue<>();
        CountDownLatch reading = new CountDownLatch(8);
        List<Thread> readers = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            Thread reader = new Thread(() -> {
                try {
                    while (true) {
                        assertArrayEquals(segment.log, read(manager.fetchLogSegment(segment.metadata, 0)));
                        reading.countDown();
                    }
                } catch (RemoteStorageException | IOException closed) {
                    // As it should be.
                } catch (Throwable thrown) {
                    unexpected.add(thrown);
                }
            });
            reader.start();
            readers.add(reader);
        }
        reading.await();
        manager.close();
        for (Thread reader : readers) {
            reader.join();
        }
        assertEquals(List.of(), List.copyOf(unexpected));
    }

    @Test
    void closedInstancesLeaveNoThreads() throws Exception {
        for (int turn = 0; turn < 3; turn++) {
            Plugin.open(Plugin.onDirectory(root)).close();
        }
        // The kernel lists a thread for a moment after it was joined.
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(5);
        while (nativeThreads() > 0 && System.nanoTime() < deadline) {
            Thread.sleep(10);
        }
        assertEquals(0, nativeThreads());
    }

    private static long nativeThreads() throws IOException {
        try (var tasks = Files.list(Path.of("/proc/self/task"))) {
            return tasks.filter(task -> name(task).startsWith("alluvium-")).count();
        }
    }

    private static String name(Path task) {
        try {
            return Files.readString(task.resolve("comm"));
        } catch (IOException ended) {
            return "";
        }
    }
}

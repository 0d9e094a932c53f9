package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.Map;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import org.junit.jupiter.api.io.TempDir;

/** A panic in native code is a failed call and nothing more. */
@EnabledIfSystemProperty(named = "alluvium.test.hooks.library", matches = ".+")
final class PanicTest {
    @TempDir
    Path folder;

    @TempDir
    Path root;

    private URLClassLoader loader;
    private RemoteStorageManager manager;
    private TestSegment segment;

    @BeforeEach
    void open() throws Exception {
        loader = Plugin.loader(Plugin.JAR, new File(System.getProperty("alluvium.test.hooks.classes")));
        manager = Plugin.in(loader);
        Map<String, Object> configs = Plugin.onDirectory(root);
        configs.put("native.library.path", System.getProperty("alluvium.test.hooks.library"));
        manager.configure(configs);
        segment = TestSegment.of(folder, 100_000);
    }

    @AfterEach
    void close() throws IOException {
        manager.close();
        loader.close();
    }

    private void arm(int place) throws ReflectiveOperationException {
        loader.loadClass("io.alluvium.kafka.PanicHooks").getMethod("arm", int.class).invoke(null, place);
    }

    private void assertAllWorks() throws Exception {
        TestSegment other = TestSegment.of(folder.resolve("other"), 1000);
        manager.copyLogSegmentData(other.metadata, other.data);
        other.assertReadableFrom(manager);
        manager.deleteLogSegmentData(other.metadata);
    }

    @Test
    void aPanicInACallIsARemoteStorageExceptionWithItsText() throws Exception {
        manager.copyLogSegmentData(segment.metadata, segment.data);
        for (int place : new int[] {PanicHooks.IN_CALL, PanicHooks.IN_CALL_FORMATTED}) {
            arm(place);
            assertPanic(assertThrows(
                RemoteStorageException.class, () -> manager.copyLogSegmentData(segment.metadata, segment.data)));
            arm(place);
            assertPanic(assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(segment.metadata, 0)));
            arm(place);
            assertPanic(assertThrows(
                RemoteStorageException.class, () -> manager.fetchIndex(segment.metadata, IndexType.OFFSET)));
            arm(place);
            assertPanic(assertThrows(RemoteStorageException.class, () -> manager.deleteLogSegmentData(segment.metadata)));
            assertAllWorks();
        }
    }

    @Test
    void aPanicInATaskIsARemoteStorageExceptionWithItsText() throws Exception {
        arm(PanicHooks.IN_TASK);
        assertPanic(assertThrows(
            RemoteStorageException.class, () -> manager.copyLogSegmentData(segment.metadata, segment.data)));
        assertAllWorks();
    }

    @Test
    void aPanicInAReadIsAnIoException() throws Exception {
        manager.copyLogSegmentData(segment.metadata, segment.data);
        try (InputStream stream = manager.fetchLogSegment(segment.metadata, 0)) {
            arm(PanicHooks.IN_CALL);
            assertPanic(assertThrows(IOException.class, () -> stream.read(new byte[1000])));
        }
        assertAllWorks();
    }

    private static void assertPanic(Exception failure) {
        String message = failure.getMessage();
        assertTrue(message.contains("a panic that a test asked for"), message);
        assertEquals(1, message.lines().count(), message);
    }
}

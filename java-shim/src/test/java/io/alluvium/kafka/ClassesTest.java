package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.io.InputStream;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import java.util.stream.Collectors;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** After configure the jar is not needed any more: an upgrade may have written over it while the broker runs. */
final class ClassesTest {
    @TempDir
    Path folder;

    @TempDir
    Path root;

    private Path jar;
    private URLClassLoader loader;
    private RemoteStorageManager manager;

    @BeforeEach
    void copyTheJar() throws Exception {
        jar = Files.copy(Plugin.JAR.toPath(), folder.resolve("alluvium.jar"));
        loader = Plugin.loader(jar.toFile());
        manager = Plugin.in(loader);
    }

    @AfterEach
    void close() throws IOException {
        manager.close();
        loader.close();
    }

    /** In place, as cp does it: the loader has the file open and reads the new content under the old table. */
    private void overwriteTheJar() throws IOException {
        Files.write(jar, new byte[(int) Files.size(jar)]);
    }

    @Test
    void everyClassOfTheJarIsLoadedByConfigure() throws Exception {
        List<String> names;
        try (JarFile original = new JarFile(Plugin.JAR)) {
            names = original.stream()
                .map(JarEntry::getName)
                .filter(name -> name.endsWith(".class"))
                .map(name -> name.substring(0, name.length() - ".class".length()).replace('/', '.'))
                .collect(Collectors.toList());
        }
        manager.configure(Plugin.onDirectory(root));
        overwriteTheJar();
        assertFalse(names.isEmpty());
        for (String name : names) {
            assertSame(loader, Class.forName(name, true, loader).getClassLoader(), name);
        }
    }

    @Test
    void allCallsWorkAfterTheJarWasOverwritten() throws Exception {
        manager.configure(Plugin.onDirectory(root));
        overwriteTheJar();
        TestSegment segment = TestSegment.of(folder.resolve("segment"), 100_000);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        segment.assertReadableFrom(manager);
        try (InputStream stream = manager.fetchLogSegment(segment.metadata, 0)) {
            stream.read();
        }
        manager.deleteLogSegmentData(segment.metadata);
        RemoteStorageManager second = Plugin.in(loader);
        second.configure(Plugin.onDirectory(root));
        second.copyLogSegmentData(segment.metadata, segment.data);
        segment.assertReadableFrom(second);
        second.close();
    }

    @Test
    void failuresAreRemoteStorageExceptionsAfterTheJarWasOverwritten() throws Exception {
        manager.configure(Plugin.onDirectory(root));
        overwriteTheJar();
        TestSegment segment = TestSegment.of(folder.resolve("segment"), 1000);
        assertCallsFail(segment);
        assertThrows(RemoteStorageException.class,
            () -> manager.copyLogSegmentData(TestSegment.metadata(2000), segment.data));
        assertThrows(RemoteStorageException.class, () -> manager.copyLogSegmentData(null, null));
        assertThrows(RemoteStorageException.class, () -> manager.deleteLogSegmentData(null));
        assertThrows(ConfigException.class, () -> manager.configure(Plugin.onDirectory(root)));
        assertThrows(ConfigException.class, () -> Plugin.in(loader).configure(null));
        manager.close();
        assertThrows(RemoteStorageException.class, () -> manager.deleteLogSegmentData(segment.metadata));
        assertCallsFail(segment);
    }

    private void assertCallsFail(TestSegment missing) {
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(missing.metadata, 0));
        assertThrows(RemoteStorageException.class, () -> manager.fetchLogSegment(missing.metadata, 5, 4));
        for (IndexType type : IndexType.values()) {
            assertThrows(RemoteStorageException.class, () -> manager.fetchIndex(missing.metadata, type), type::name);
        }
    }

    @Test
    void aJarThatWasOverwrittenBeforeConfigureIsAConfigException() throws Exception {
        overwriteTheJar();
        assertThrows(ConfigException.class, () -> manager.configure(Plugin.onDirectory(root)));
        assertThrows(ConfigException.class, () -> manager.configure(Plugin.onDirectory(root)));
    }

    @Test
    void theThreadThatClosesForgottenStreamsIsStartedByConfigure() throws Exception {
        long before = cleaners();
        manager.configure(Plugin.onDirectory(root));
        assertEquals(before + 1, cleaners());
        RemoteStorageManager second = Plugin.in(loader);
        second.configure(Plugin.onDirectory(root));
        second.close();
        assertEquals(before + 1, cleaners(), "one for all instances");
    }

    private static long cleaners() {
        return Thread.getAllStackTraces().keySet().stream()
            .filter(thread -> thread.getName().startsWith("Cleaner-"))
            .count();
    }
}

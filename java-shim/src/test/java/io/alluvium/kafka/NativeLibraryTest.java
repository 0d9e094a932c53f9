package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.jar.JarFile;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Where the library comes from. Each test has a class loader of its own, since a library is loaded once in each. */
final class NativeLibraryTest {
    @TempDir
    Path folder;

    @TempDir
    Path root;

    static Path extracted(Path into) throws IOException {
        Path file = into.resolve("liballuvium.so");
        try (JarFile jar = new JarFile(Plugin.JAR);
            InputStream library = jar.getInputStream(jar.getEntry("native/" + Platform.current() + "/liballuvium.so"))) {
            Files.copy(library, file);
        }
        return file;
    }

    /** What a copy that was cut off leaves. */
    private byte[] beginning() throws IOException {
        Path whole = extracted(Files.createDirectory(folder.resolve("whole")));
        try (InputStream library = Files.newInputStream(whole)) {
            return library.readNBytes(4096);
        }
    }

    private void configure(File jar, String key, Object value) throws Exception {
        Map<String, Object> configs = Plugin.onDirectory(root);
        if (key != null) {
            configs.put(key, value);
        }
        try (URLClassLoader loader = Plugin.loader(jar)) {
            RemoteStorageManager manager = Plugin.in(loader);
            manager.configure(configs);
            manager.close();
        }
    }

    private String refused(String key, Object value) {
        ConfigException refusal = assertThrows(ConfigException.class, () -> configure(Plugin.JAR, key, value));
        return refusal.getMessage();
    }

    @Test
    void aCopyOfTheResourceIsRemovedOnceItIsLoaded() throws Exception {
        configure(Plugin.JAR, "native.extract.path", folder.toString());
        try (var left = Files.list(folder)) {
            assertEquals(0, left.count());
        }
    }

    @Test
    void anInterruptDoesNotKeepTheLibraryFromBeingExtractedAndStays() throws Exception {
        Thread.currentThread().interrupt();
        try {
            configure(Plugin.JAR, "native.extract.path", folder.toString());
        } finally {
            assertTrue(Thread.interrupted(), "the interrupt is kept");
        }
    }

    @Test
    void anInterruptDoesNotKeepANamedLibraryFromBeingLoadedTwice() throws Exception {
        Path library = extracted(folder);
        for (int turn = 0; turn < 2; turn++) {
            Thread.currentThread().interrupt();
            try {
                configure(Plugin.JAR, "native.library.path", library.toString());
            } finally {
                assertTrue(Thread.interrupted(), "the interrupt is kept");
            }
        }
    }

    @Test
    void theLibraryBesideTheJarIsPreferredToTheOneInside() throws Exception {
        Path jar = Files.copy(Plugin.JAR.toPath(), folder.resolve("alluvium.jar"));
        Path platform = Files.createDirectories(folder.resolve("native").resolve(Platform.current()));
        Files.write(platform.resolve("liballuvium.so"), beginning());
        ConfigException refusal = assertThrows(ConfigException.class, () -> configure(jar.toFile(), null, null));
        assertTrue(refusal.getMessage().contains(platform.toString()), refusal::getMessage);
        Files.delete(platform.resolve("liballuvium.so"));
        extracted(platform);
        configure(jar.toFile(), "native.extract.path", "/nonexistent");
    }

    @Test
    void aPathWithoutAFileIsNamed() {
        String message = refused("native.library.path", "/nonexistent/liballuvium.so");
        assertTrue(message.contains("native.library.path") && message.contains("/nonexistent"), message);
    }

    @Test
    void aDamagedLibraryIsNamedAndDoesNotEndTheProcess() throws Exception {
        String message = refused("native.library.path", Files.write(folder.resolve("half.so"), beginning()));
        assertTrue(message.contains("native.library.path") && message.contains("cut short"), message);
        message = refused("native.library.path", Files.writeString(folder.resolve("text.so"), "not a library"));
        assertTrue(message.contains("it is not a library"), message);
    }

    @Test
    void aLibraryForAnotherArchitectureIsNamed() throws Exception {
        byte[] other = beginning();
        other[18] ^= 1;
        String message = refused("native.library.path", Files.write(folder.resolve("other.so"), other));
        assertTrue(message.contains("another architecture"), message);
    }

    @Test
    void aLibraryThatIsNotOursIsNamed() {
        String message = refused("native.library.path", System.getProperty("java.home") + "/lib/libzip.so");
        assertTrue(message.contains("is not alluvium's library"), message);
    }

    @Test
    void aDirectoryThatCannotBeWrittenIsNamed() {
        String message = refused("native.extract.path", "/nonexistent/here");
        assertTrue(message.contains("native.extract.path") && message.contains("/nonexistent/here"), message);
        assertTrue(refused("native.extract.path", "/proc").contains("native.extract.path"));
    }
}

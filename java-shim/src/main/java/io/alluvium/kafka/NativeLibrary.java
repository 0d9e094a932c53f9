package io.alluvium.kafka;

import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.URISyntaxException;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.CodeSource;
import org.apache.kafka.common.config.ConfigException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Finds and loads the library, once for a class loader.
 *
 * <p>In order: {@code native.library.path}; {@code native/<platform>/} beside the jar; the resource in the jar, copied
 * into a fresh private directory. Java binds a file to the class loader that loaded it, so the second class loader of a
 * virtual machine gets a private copy. A copy is deleted as soon as it is loaded; its mapping lives on.
 */
final class NativeLibrary {
    private static final Logger LOG = LoggerFactory.getLogger(NativeLibrary.class);
    private static final String FILE_NAME = "liballuvium.so";
    private static final String LOADED_ELSEWHERE = "already loaded in another classloader";

    /** What the library said of itself, once it is loaded. Guarded by the class. */
    private static String version;

    private NativeLibrary() {}

    /** Returns the library's version. The first instance in a class loader decides where the library comes from. */
    static synchronized String load(Settings settings) throws NativeException {
        if (version == null) {
            Path loaded = find(settings);
            version = initialise(loaded);
            QuietLog.info(LOG, "loaded the native library {} from {}", version, loaded);
        }
        return version;
    }

    private static Path find(Settings settings) {
        Path extractInto = Paths.get(extractPath(settings));
        String configured = settings.get(Settings.LIBRARY_PATH);
        if (configured != null) {
            Path file = Paths.get(configured).toAbsolutePath();
            if (!Files.isRegularFile(file)) {
                throw new ConfigException(Settings.LIBRARY_PATH + ": there is no file " + file
                    + "; name the file " + FILE_NAME + ", or remove the key to use the library inside the jar");
            }
            loadFile(file, extractInto);
            return file;
        }
        String platform = Platform.current();
        Path beside = besideJar(platform);
        if (beside != null && Files.isRegularFile(beside)) {
            loadFile(beside, extractInto);
            return beside;
        }
        loadResource("native/" + platform + "/" + FILE_NAME, platform, extractInto);
        return Paths.get("jar:native", platform, FILE_NAME);
    }

    private static String extractPath(Settings settings) {
        String configured = settings.get(Settings.EXTRACT_PATH);
        return configured != null ? configured : System.getProperty("java.io.tmpdir");
    }

    private static Path besideJar(String platform) {
        try {
            CodeSource source = NativeLibrary.class.getProtectionDomain().getCodeSource();
            if (source == null || source.getLocation() == null) {
                return null;
            }
            Path jar = Paths.get(source.getLocation().toURI()).toAbsolutePath();
            Path folder = jar.getParent();
            return folder == null ? null : folder.resolve("native").resolve(platform).resolve(FILE_NAME);
        } catch (URISyntaxException | RuntimeException notAFile) {
            return null;
        }
    }

    /** Loads the file itself, so that nothing has to be copied, unless another class loader has it. */
    private static void loadFile(Path file, Path extractInto) {
        try {
            failIfUnfit(file);
            System.load(file.toString());
        } catch (IOException failure) {
            throw new ConfigException(Settings.LIBRARY_PATH + ": the native library " + file + " cannot be read: " + failure);
        } catch (UnsatisfiedLinkError error) {
            if (!String.valueOf(error.getMessage()).contains(LOADED_ELSEWHERE)) {
                throw new ConfigException(describe(error, file));
            }
            try (InputStream content = new FileInputStream(file.toFile())) {
                loadCopy(content, extractInto);
            } catch (IOException failure) {
                throw cannotExtract(extractInto, failure);
            }
        }
    }

    private static void loadResource(String resource, String platform, Path extractInto) {
        try (InputStream content = NativeLibrary.class.getClassLoader().getResourceAsStream(resource)) {
            if (content == null) {
                throw new ConfigException("this jar carries no native library for " + platform
                    + "; use the jar built for it, or put the library's path into " + Settings.LIBRARY_PATH);
            }
            loadCopy(content, extractInto);
        } catch (IOException failure) {
            throw cannotExtract(extractInto, failure);
        }
    }

    private static void loadCopy(InputStream content, Path extractInto) throws IOException {
        Path folder = Files.createTempDirectory(extractInto, "alluvium-", onlyForOwner());
        try {
            // The random name of the folder makes the path unique, and nobody else may enter it.
            Path file = folder.resolve(FILE_NAME);
            try {
                // Not through a channel: an interrupt, which is none of this method's business, would close it.
                try (OutputStream copy = new FileOutputStream(file.toFile())) {
                    content.transferTo(copy);
                }
                failIfUnfit(file);
                System.load(file.toAbsolutePath().toString());
            } catch (UnsatisfiedLinkError error) {
                throw new ConfigException(describe(error, file));
            } finally {
                Files.deleteIfExists(file);
            }
        } finally {
            Files.deleteIfExists(folder);
        }
    }

    private static void failIfUnfit(Path file) throws IOException {
        String complaint = ElfFile.complaint(file, Platform.architecture());
        if (complaint != null) {
            throw new ConfigException(
                Settings.LIBRARY_PATH + ": the native library " + file + " cannot be loaded: " + complaint);
        }
    }

    private static FileAttribute<?>[] onlyForOwner() {
        if (!FileSystems.getDefault().supportedFileAttributeViews().contains("posix")) {
            return new FileAttribute<?>[0];
        }
        return new FileAttribute<?>[] {
            PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
        };
    }

    private static ConfigException cannotExtract(Path into, IOException failure) {
        File folder = into.toFile();
        return new ConfigException(Settings.EXTRACT_PATH + ": the native library could not be written to " + into + " ("
            + failure + "; " + folder.getUsableSpace() / (1024 * 1024) + " MiB free there): name a writable directory with"
            + " room for it, or put the library's own path into " + Settings.LIBRARY_PATH);
    }

    /** The dynamic loader's message says what it met; this adds what to do. */
    private static String describe(UnsatisfiedLinkError error, Path file) {
        String message = String.valueOf(error.getMessage());
        String advice;
        if (message.contains("failed to map segment")) {
            advice = "its file system is mounted noexec: name another directory in " + Settings.EXTRACT_PATH
                + ", or put the library's own path into " + Settings.LIBRARY_PATH;
        } else if (message.contains("GLIBC_") || message.contains("GCC_")) {
            advice = "the C library of this system is older than the one it was built for: use the build for older systems";
        } else if (message.contains("musl") || message.contains("ld-linux") || message.contains("libc.so")) {
            advice = "it was built for another C library (this system: " + Platform.current() + ")";
        } else {
            advice = "check that it is the library of this version for " + Platform.current();
        }
        return Settings.LIBRARY_PATH + ": the native library " + file + " could not be loaded: " + message + "; " + advice;
    }

    private static String initialise(Path loaded) throws NativeException {
        try {
            return Native.init(Native.ABI, NativeException.class);
        } catch (UnsatisfiedLinkError error) {
            throw new ConfigException(Settings.LIBRARY_PATH + ": " + loaded + " is not alluvium's library ("
                + error.getMessage() + ")");
        }
    }
}

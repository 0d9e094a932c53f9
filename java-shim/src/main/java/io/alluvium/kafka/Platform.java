package io.alluvium.kafka;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Locale;
import java.util.Map;

/** Which build of the library this virtual machine can load, such as {@code linux-x86_64-gnu}. */
final class Platform {
    private static final Map<String, String> ARCHITECTURES =
        Map.of("amd64", "x86_64", "x86_64", "x86_64", "aarch64", "aarch64", "arm64", "aarch64");

    private Platform() {}

    static String current() {
        String system = System.getProperty("os.name", "").toLowerCase(Locale.ROOT);
        return system + "-" + architecture() + "-" + (isMusl() ? "musl" : "gnu");
    }

    static String architecture() {
        String architecture = System.getProperty("os.arch", "").toLowerCase(Locale.ROOT);
        return ARCHITECTURES.getOrDefault(architecture, architecture);
    }

    /** The C library this process runs on is mapped into it. */
    private static boolean isMusl() {
        try (BufferedReader maps = Files.newBufferedReader(Paths.get("/proc/self/maps"), StandardCharsets.ISO_8859_1)) {
            return maps.lines().anyMatch(line -> line.contains("/ld-musl-") || line.contains("/libc.musl-"));
        } catch (IOException noProc) {
            return false;
        }
    }
}

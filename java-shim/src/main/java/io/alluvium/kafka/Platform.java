package io.alluvium.kafka;

import java.io.BufferedReader;
import java.io.FileReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
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
        // Not through a channel: an interrupt would close it, and the answer would be wrong.
        try (BufferedReader maps = new BufferedReader(new FileReader("/proc/self/maps", StandardCharsets.ISO_8859_1))) {
            for (String line = maps.readLine(); line != null; line = maps.readLine()) {
                if (line.contains("/ld-musl-") || line.contains("/libc.musl-")) {
                    return true;
                }
            }
            return false;
        } catch (IOException noProc) {
            return false;
        }
    }
}

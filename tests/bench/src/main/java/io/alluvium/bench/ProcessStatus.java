package io.alluvium.bench;

import com.sun.management.OperatingSystemMXBean;
import io.alluvium.harness.HarnessException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;

/** What the kernel says of this process: memory as in proc(5), and CPU time of all threads, native ones included. */
final class ProcessStatus {
    private static final Path STATUS = Path.of("/proc/self/status");
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private ProcessStatus() {
    }

    /** User and system time; counted in ticks of 10 ms. */
    static long cpuNanos() {
        return SYSTEM.getProcessCpuTime();
    }

    static long residentBytes() {
        return bytes("VmRSS:");
    }

    /** The most that was resident since the last {@link #resetPeak}. */
    static long peakResidentBytes() {
        return bytes("VmHWM:");
    }

    static void resetPeak() {
        try {
            // 5: the peak becomes what is resident now (proc(5), clear_refs).
            Files.writeString(Path.of("/proc/self/clear_refs"), "5");
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private static long bytes(String field) {
        try {
            for (String line : Files.readAllLines(STATUS)) {
                if (line.startsWith(field)) {
                    return Long.parseLong(line.replaceAll("\\D", "")) << 10;
                }
            }
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        throw new HarnessException(STATUS + " has no line " + field);
    }
}

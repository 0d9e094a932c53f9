package io.alluvium.bench;

import java.util.Map;

/**
 * The figures of one case.
 *
 * @param wallNanos elapsed, without comparing
 * @param cpuNanos of the whole process, without comparing
 * @param comparingNanos CPU time that went into comparing
 * @param callersHeapBytes allocated by the consumers' threads inside calls of the plugin
 * @param pluginHeapBytes the same, and what all other Java threads allocated meanwhile
 * @param counters of the proxy; empty without one
 * @param bytesRead taken from streams
 * @param bytesDelivered of them, those that a consumer is given: every byte of a segment once
 */
record Row(String name, int consumers, long wallNanos, long cpuNanos, long comparingNanos, long callersHeapBytes,
        long pluginHeapBytes, long residentBytes, long peakResidentBytes, Map<String, Long> counters, Latencies latencies,
        long bytesRead, long bytesDelivered) {
    private static final double MIB = 1 << 20;
    /** What delivers less is too short for a rate of CPU time, which is counted in ticks. */
    private static final double RATED_MIB_MIN = 64;

    double wallSeconds() {
        return wallNanos / 1e9;
    }

    double deliveredMib() {
        return bytesDelivered / MIB;
    }

    double mibPerSecond() {
        return deliveredMib() / wallSeconds();
    }

    /** Never less than nothing: ticks are coarser than what is subtracted for comparing. */
    double cpuSeconds() {
        return Math.max(0, cpuNanos / 1e9);
    }

    boolean isRated() {
        return deliveredMib() >= RATED_MIB_MIN;
    }

    double cpuSecondsPerGib() {
        return cpuSeconds() / (deliveredMib() / 1024);
    }

    static double mib(long bytes) {
        return bytes / MIB;
    }
}

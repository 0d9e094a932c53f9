package io.alluvium.bench;

import java.util.List;
import java.util.stream.LongStream;

/** The latencies of a case, all consumers together. */
final class Latencies {
    /** What a consumer meets at its start (a first open, no read-ahead yet) is looked at apart from what follows. */
    private static final int FIRST_CALLS = 5;

    private final long[] all;
    private final long[] withoutFirst;

    Latencies(List<Reading> readings) {
        all = sorted(readings, 0);
        withoutFirst = sorted(readings, FIRST_CALLS);
    }

    private static long[] sorted(List<Reading> readings, int skipped) {
        return readings.stream()
                .flatMapToLong(reading -> LongStream.range(skipped, Math.max(skipped, reading.calls()))
                        .map(call -> reading.latency((int) call)))
                .sorted()
                .toArray();
    }

    int count() {
        return all.length;
    }

    double medianMillis() {
        return millis(all, 0.5);
    }

    double p99Millis() {
        return millis(all, 0.99);
    }

    double maxMillis() {
        return millis(all, 1);
    }

    /** Without the first five of each consumer. */
    double laterP99Millis() {
        return millis(withoutFirst, 0.99);
    }

    /** The smallest value that at least this share of all values does not exceed. */
    private static double millis(long[] values, double share) {
        if (values.length == 0) {
            return Double.NaN;
        }
        int rank = (int) Math.ceil(share * values.length);
        return values[Math.max(1, rank) - 1] / 1e6;
    }
}

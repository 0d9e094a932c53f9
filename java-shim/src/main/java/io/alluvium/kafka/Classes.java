package io.alluvium.kafka;

/**
 * Brings in, at configure, all that later calls need.
 *
 * <p>A class that is loaded at the first call is missing when the jar has been replaced by then, or when there is no
 * memory left to read it; and what would turn that failure into one that Kafka handles well may be missing as well.
 */
final class Classes {
    private static final Class<?>[] NEEDED = {
        AlluviumRemoteStorageManager.class, Failures.class, LogPump.class, Metrics.class, MetricsBean.class,
        MetricsBean.Metric.class, Native.class, NativeException.class, NativeLibrary.class, Operation.class,
        Platform.class, ElfFile.class, QuietLog.class, SegmentEncoder.class, SegmentInputStream.class,
        SegmentInputStream.Release.class, Settings.class, Tasks.class,
    };

    private Classes() {}

    /** Loads and initialises them; what has failed for want of memory is tried again by the next configure. */
    static void load() throws ClassNotFoundException {
        for (Class<?> needed : NEEDED) {
            Class.forName(needed.getName(), true, needed.getClassLoader());
        }
        Failures.prepare();
    }

    /** Once the library is there: goes the way of each kind of call, with nothing at its end. */
    static void prepareCalls() throws NativeException {
        Tasks.prepare();
        SegmentInputStream.prepare();
    }
}

package io.alluvium.kafka;

/**
 * Every native method of the plugin; rust/jni/src/natives.rs is the other side.
 *
 * <p>Calls go down only. Handles (engine, task, reader) are ids in a table, never pointers: an id that is closed or never
 * existed gives a {@link NativeException}. No method waits longer than the slice it is given, except {@link #open} and
 * {@link #close}, which the library bounds itself. No thread has to be attached, no lock of Java's is held.
 */
final class Native {
    /** The number both sides must agree on; grows with every change to a signature, an encoding or a number below. */
    static final int ABI = 1;

    /** {@link #startOpenSegment}: everything from the start on. */
    static final long TO_THE_END = -1;

    /** {@link #await}: the task has not ended yet. */
    static final int TASK_PENDING = -1;

    /** {@link #read}: the stream has ended. */
    static final int READ_END = -1;
    /** {@link #read}: no byte has come within the slice. */
    static final int READ_PENDING = -2;

    /** Strings a log event takes in {@link #pollLogs}: level, target, message. */
    static final int LOG_FIELDS = 3;
    /** Strings a metric takes in {@link #describeMetrics}: part, name, unit, kind, help. */
    static final int METRIC_FIELDS = 5;

    private Native() {}

    /** Binds the other methods and returns the library's version. Safe to call again. The only exported symbol. */
    static native String init(int abi, Class<?> nativeException) throws NativeException;

    static native long open(String[] keysAndValues) throws NativeException;

    /** {@code paths}: log, offset index, time index, transaction index (null: none), producer snapshot. */
    static native long startCopy(long engine, byte[] segment, String[] paths, byte[] leaderEpochs) throws NativeException;

    /** {@code endInclusive}: the last byte wanted, or {@link #TO_THE_END}. */
    static native long startOpenSegment(long engine, byte[] segment, long start, long endInclusive) throws NativeException;

    static native long startOpenIndex(long engine, byte[] segment, int indexType) throws NativeException;

    static native long startDelete(long engine, byte[] segment) throws NativeException;

    /**
     * Waits a slice. Returns {@link #TASK_PENDING} or the number of bytes put into {@code result}: a copy's custom
     * metadata, an open's reader id (8 bytes, big-endian), nothing for a delete. The task is gone once it has ended.
     */
    static native int await(long task, byte[] result, int sliceMs) throws NativeException;

    /** Asks a task to end early. It cleans up first: keep waiting for it. An unknown task is none of our business. */
    static native void cancel(long task) throws NativeException;

    /** Waits a slice. Returns the number of bytes read, {@link #READ_END} or {@link #READ_PENDING}. */
    static native int read(long reader, byte[] target, int offset, int length, int sliceMs) throws NativeException;

    static native void closeReader(long reader) throws NativeException;

    static native void close(long engine) throws NativeException;

    /** Fills {@code values} in the order of {@link #describeMetrics}. */
    static native void metrics(long engine, long[] values) throws NativeException;

    static native String[] describeMetrics() throws NativeException;

    static native String[] pollLogs(int max, int waitMs) throws NativeException;
}

package io.alluvium.bench;

import com.sun.management.ThreadMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * What one consumer reads in one case: its buffers, made before anything is measured, and its figures.
 *
 * <p>Flow: {@link #begin}, calls of the plugin, {@link #pause} or {@link #end}; then {@link #compare}, which is kept
 * out of the latencies and of the heap figure, and whose CPU time is told, so that it can be subtracted. Used by one
 * thread.
 *
 * <p>Failure: bytes that differ are told by {@link WrongBytes}, which ends the run.
 */
final class Reading {
    /** Holds what Kafka reads in one fetch, with the batches before the wanted one. */
    static final int BUFFER_BYTES = 4 << 20;

    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();

    /** What the plugin reads into. */
    final byte[] buffer = new byte[BUFFER_BYTES];
    /** The same, to look at numbers in it. */
    final ByteBuffer view = ByteBuffer.wrap(buffer);

    private final ByteBuffer compared = ByteBuffer.wrap(buffer);
    private final ByteBuffer expected = ByteBuffer.allocateDirect(BUFFER_BYTES);
    private final long[] latencies;
    private int calls;
    private long began;
    private long taken;
    private long allocatedBefore;
    private long allocatedBytes;
    private long comparingNanos;
    private long bytesRead;
    private long bytesDelivered;

    /** @param callsMax how many latencies there will be at most */
    Reading(int callsMax) {
        latencies = new long[callsMax];
    }

    /** The plugin is called from here on. */
    void begin() {
        allocatedBefore = THREADS.getThreadAllocatedBytes(Thread.currentThread().getId());
        began = System.nanoTime();
    }

    /** The plugin was called until here, and will be again for the same latency. */
    void pause() {
        taken += System.nanoTime() - began;
        allocatedBytes += THREADS.getThreadAllocatedBytes(Thread.currentThread().getId()) - allocatedBefore;
    }

    /** The plugin was called until here, and a latency is complete. */
    void end() {
        pause();
        latencies[calls++] = taken;
        taken = 0;
    }

    /** Counts bytes as read from the plugin, and those of them that a consumer is given. */
    void count(long read, long delivered) {
        bytesRead += read;
        bytesDelivered += delivered;
    }

    /** Compares the begin of the buffer with the segment from the position on. */
    void compare(LocalSegment segment, int position, int count) throws IOException {
        long before = THREADS.getCurrentThreadCpuTime();
        expected.clear().limit(count);
        segment.read(expected, position);
        compareWithExpected(count, segment.baseOffset() + ".log at " + position);
        comparingNanos += THREADS.getCurrentThreadCpuTime() - before;
    }

    /** Compares the begin of the buffer with a whole file. */
    void compare(Path file, int count) throws IOException {
        long before = THREADS.getCurrentThreadCpuTime();
        byte[] whole = Files.exists(file) ? Files.readAllBytes(file) : new byte[0];
        if (whole.length != count) {
            throw new WrongBytes(file.getFileName() + " has " + whole.length + " bytes, and " + count + " were given");
        }
        expected.clear().put(whole);
        compareWithExpected(count, file.getFileName().toString());
        comparingNanos += THREADS.getCurrentThreadCpuTime() - before;
    }

    private void compareWithExpected(int count, String where) {
        expected.flip();
        compared.clear().limit(count);
        int differs = compared.mismatch(expected);
        if (differs >= 0) {
            throw new WrongBytes(where + " + " + differs + ": another byte than in the file");
        }
    }

    long bytesRead() {
        return bytesRead;
    }

    long bytesDelivered() {
        return bytesDelivered;
    }

    long allocatedBytes() {
        return allocatedBytes;
    }

    long comparingNanos() {
        return comparingNanos;
    }

    int calls() {
        return calls;
    }

    /** Nanoseconds of the timed call with this number. */
    long latency(int call) {
        return latencies[call];
    }

    /** The plugin gave something else than what it was given. */
    static final class WrongBytes extends RuntimeException {
        private static final long serialVersionUID = 1L;

        WrongBytes(String message) {
            super(message);
        }
    }
}

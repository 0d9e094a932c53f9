package io.alluvium.kafka;

import java.nio.ByteBuffer;
import java.util.Arrays;

/** Waits for native tasks on the thread that Kafka called from. */
final class Tasks {
    /** Short enough that an interrupt is noticed at once by human measure, long enough to cost nothing. */
    static final int SLICE_MS = 50;
    /** More than any result: custom metadata stays under 128 bytes, Kafka's default limit. */
    private static final int MAX_RESULT_BYTES = 256;

    private Tasks() {}

    /**
     * Waits until the task has ended. An interrupt cancels it, once, and the wait goes on: the task first removes what it
     * has written, which the library bounds in time. The interrupt stays set. A task that succeeded all the same has
     * succeeded: nobody would clean up after it.
     */
    static byte[] await(long task) throws NativeException {
        byte[] result = new byte[MAX_RESULT_BYTES];
        boolean cancelled = false;
        boolean ended = false;
        try {
            while (true) {
                int length = Native.await(task, result, SLICE_MS);
                if (length != Native.TASK_PENDING) {
                    ended = true;
                    return Arrays.copyOf(result, length);
                }
                if (!cancelled && Thread.currentThread().isInterrupted()) {
                    cancelled = true;
                    Native.cancel(task);
                }
            }
        } catch (NativeException failure) {
            ended = true;
            throw failure;
        } finally {
            if (!ended) {
                Native.cancel(task);
            }
        }
    }

    static long awaitReader(long task) throws NativeException {
        byte[] reader = await(task);
        if (reader.length != Long.BYTES) {
            throw new IllegalStateException("the open ended without a result");
        }
        return ByteBuffer.wrap(reader).getLong();
    }
}

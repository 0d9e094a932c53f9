package io.alluvium.kafka;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * Waits for native tasks on the thread that Kafka called from.
 *
 * <p>Between a task's start and its end nothing is allocated here: a full heap must not leave a task behind that nobody
 * waits for.
 */
final class Tasks {
    /** Short enough that an interrupt is noticed at once by human measure, long enough to cost nothing. */
    static final int SLICE_MS = 50;
    /** More than any result: custom metadata stays under 128 bytes, Kafka's default limit. */
    private static final int MAX_RESULT_BYTES = 256;
    /**
     * After so many errors in a row the task has ended: one that has is unknown from then on, but to say so takes an
     * exception, for which there may be no memory.
     */
    private static final int MAX_ERRORS = 10;
    private static final long NO_TASK = 0;

    private Tasks() {}

    /** Goes the way of a task once, so that all it needs is linked while there is memory to do so. */
    static void prepare() throws NativeException {
        try {
            cancel(NO_TASK);
            await(NO_TASK, result());
        } catch (NativeException unknownTask) {
            // As it should be.
        }
    }

    /** Room for a task's result; to be made before the task is started. */
    static byte[] result() {
        return new byte[MAX_RESULT_BYTES];
    }

    /**
     * Waits until the task has ended and returns how many bytes of {@code result} it has filled. An interrupt or an error
     * of the virtual machine cancels it, once, and the wait goes on: the task first removes what it has written, which the
     * library bounds in time. The interrupt stays set. A task that succeeded all the same has succeeded: nobody would
     * clean up after it.
     *
     * @throws NativeException only if the task has failed
     */
    static int await(long task, byte[] result) throws NativeException {
        boolean cancelled = false;
        Throwable error = null;
        int errors = 0;
        while (true) {
            try {
                int length = Native.await(task, result, SLICE_MS);
                if (length != Native.TASK_PENDING) {
                    return length;
                }
                errors = 0;
                if (!cancelled && Thread.currentThread().isInterrupted()) {
                    cancelled = true;
                    Native.cancel(task);
                }
            } catch (NativeException failure) {
                if (error == null) {
                    throw failure;
                }
                // Most likely that the task is unknown; the error has told more.
                throw unchecked(error);
            } catch (Throwable thrown) {
                error = thrown;
                errors++;
                cancelled = true;
                cancel(task);
                if (errors == MAX_ERRORS) {
                    throw unchecked(error);
                }
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(SLICE_MS));
            }
        }
    }

    /** Where nothing can be done about a failure. */
    private static void cancel(long task) {
        try {
            Native.cancel(task);
        } catch (Throwable thrown) {
            // The wait that follows is bounded all the same.
        }
    }

    /** The number of the reader that a task has opened. */
    static long reader(byte[] result, int length) {
        if (length != Long.BYTES) {
            throw new IllegalStateException("the open ended without a result");
        }
        long reader = 0;
        for (int at = 0; at < Long.BYTES; at++) {
            reader = reader << Byte.SIZE | result[at] & 0xff;
        }
        return reader;
    }

    /** The compiler knows of no other checked exception there; nor is any wrapped, which would take memory. */
    @SuppressWarnings("unchecked")
    private static <T extends Throwable> RuntimeException unchecked(Throwable error) throws T {
        throw (T) error;
    }
}

package io.alluvium.harness;

import java.time.Duration;
import java.util.concurrent.Callable;

/** Waiting for a condition, always with a deadline. */
public final class Await {
    private static final long POLL_MILLIS = 50;

    private Await() {
    }

    /** Waits until the condition holds; throws, naming what was waited for, when it does not within the limit. */
    public static void until(String what, Duration limit, Callable<Boolean> condition) {
        if (!holds(limit, condition)) {
            throw new HarnessException("waited " + limit.toSeconds() + " s in vain for: " + what);
        }
    }

    /** Waits until the condition holds; false when it does not within the limit. */
    public static boolean holds(Duration limit, Callable<Boolean> condition) {
        long deadline = System.nanoTime() + limit.toNanos();
        while (true) {
            if (evaluate(condition)) {
                return true;
            }
            if (System.nanoTime() >= deadline) {
                return false;
            }
            pause(POLL_MILLIS);
        }
    }

    public static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted while waiting", interrupted);
        }
    }

    private static boolean evaluate(Callable<Boolean> condition) {
        try {
            return condition.call();
        } catch (RuntimeException failure) {
            throw failure;
        } catch (Exception failure) {
            throw new HarnessException("a condition could not be evaluated", failure);
        }
    }
}

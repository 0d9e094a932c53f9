package io.alluvium.e2e;

import io.alluvium.harness.HarnessException;

/** Runs scenarios one after the other, and counts: one that throws has failed, and the next one still runs. */
final class Scenarios {
    private int passed;
    private int failed;

    /** What a scenario does. */
    interface Body {
        void run() throws Exception;
    }

    void run(String name, Body body) {
        long started = System.nanoTime();
        String verdict = "ok   ";
        String reason = "";
        try {
            body.run();
            passed++;
        } catch (Exception failure) {
            failed++;
            verdict = "FAIL ";
            reason = "\n      " + (failure instanceof HarnessException ? failure.getMessage() : failure.toString());
        }
        System.out.printf("%s %s (%.1f s)%s%n", verdict, name, (System.nanoTime() - started) / 1e9, reason);
        System.out.flush();
    }

    /** Fails the running scenario unless the claim holds. */
    static void require(boolean holds, String claim) {
        if (!holds) {
            throw new HarnessException("not true: " + claim);
        }
    }

    int passed() {
        return passed;
    }

    int failed() {
        return failed;
    }
}

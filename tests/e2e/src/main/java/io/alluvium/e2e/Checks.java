package io.alluvium.e2e;

/** Counts and prints what was found true and what was not: one line a check, "ok" or "FAIL". */
final class Checks {
    private final ProgressLine progress;
    private int passed;
    private int failed;

    Checks(ProgressLine progress) {
        this.progress = progress;
    }

    /** Records one check; the text states what should be true. */
    boolean that(boolean holds, String statement) {
        progress.end();
        if (holds) {
            passed++;
            System.out.println("ok    " + statement);
        } else {
            failed++;
            System.out.println("FAIL  " + statement);
        }
        System.out.flush();
        return holds;
    }

    int passed() {
        return passed;
    }

    int failed() {
        return failed;
    }
}

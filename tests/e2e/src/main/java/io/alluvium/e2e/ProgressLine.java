package io.alluvium.e2e;

import java.time.Duration;

/**
 * Live progress: one line that is overwritten on a terminal, else a line every two seconds (and the last one).
 *
 * <p>Whether standard output is a terminal is told by the caller's script: Java's own answer depends on its version.
 */
final class ProgressLine {
    private static final long TERMINAL_NANOS = Duration.ofMillis(200).toNanos();
    private static final long PLAIN_NANOS = Duration.ofSeconds(2).toNanos();

    private final boolean terminal = Boolean.getBoolean("alluvium.e2e.terminal");
    private long shownAt = System.nanoTime() - PLAIN_NANOS;
    private String latest = "";
    private boolean latestShown = true;
    private boolean lineOpen;

    /** Shows the text now, or later, or never: the newest text counts. */
    void show(String text) {
        latestShown = latestShown && text.equals(latest);
        latest = text;
        if (latestShown) {
            return;
        }
        if (System.nanoTime() - shownAt >= (terminal ? TERMINAL_NANOS : PLAIN_NANOS)) {
            print();
        }
    }

    /** Shows what is still to be shown, and leaves the cursor at the start of a fresh line. */
    void end() {
        if (!latestShown) {
            print();
        }
        if (lineOpen) {
            System.out.println();
            lineOpen = false;
        }
    }

    private void print() {
        shownAt = System.nanoTime();
        latestShown = true;
        if (terminal) {
            System.out.print("\r\u001b[K  .. " + latest);
            lineOpen = true;
        } else {
            System.out.println("  .. " + latest);
        }
        System.out.flush();
    }
}

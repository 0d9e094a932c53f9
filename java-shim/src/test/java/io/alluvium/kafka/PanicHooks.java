package io.alluvium.kafka;

/** Makes a library that is built with the feature {@code test-hooks} panic, once, at a chosen place. */
public final class PanicHooks {
    public static final int IN_CALL = 0;
    public static final int IN_TASK = 1;
    public static final int IN_CALL_FORMATTED = 2;

    private PanicHooks() {}

    public static native void arm(int place);
}

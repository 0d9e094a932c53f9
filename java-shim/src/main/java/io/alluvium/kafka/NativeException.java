package io.alluvium.kafka;

/** What a native method throws, and nothing else; {@link Failures} turns it into what Kafka understands. */
final class NativeException extends Exception {
    // The numbers of the engine's ErrorKind, as far as this side tells them apart.
    static final int NOT_FOUND = 1;
    static final int CLOSED = 8;
    static final int INTERNAL = 9;
    static final int CANCELLED = 10;

    private static final long serialVersionUID = 1L;

    private final int kind;
    private final boolean retryable;

    /** Called by the library. The stack is left out: the exception made from this one has the same. */
    NativeException(int kind, boolean retryable, String message) {
        super(message, null, false, false);
        this.kind = kind;
        this.retryable = retryable;
    }

    int kind() {
        return kind;
    }

    boolean isRetryable() {
        return retryable;
    }
}

package io.alluvium.kafka;

/** What a native method throws, and nothing else; {@link Failures} turns it into what Kafka understands. */
final class NativeException extends Exception {
    /** The number of the engine's ErrorKind that this side tells from the others. */
    static final int NOT_FOUND = 1;

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

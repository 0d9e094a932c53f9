package io.alluvium.harness;

/** The harness could not go on: a process did not start, a wait ran out, a server answered with an error. */
public final class HarnessException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public HarnessException(String message) {
        super(message);
    }

    public HarnessException(String message, Throwable cause) {
        super(message, cause);
    }
}

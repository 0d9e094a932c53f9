package io.alluvium.e2e;

/** The harness could not go on: a process did not start, a wait ran out, a server answered with an error. */
final class HarnessException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    HarnessException(String message) {
        super(message);
    }

    HarnessException(String message, Throwable cause) {
        super(message, cause);
    }
}

package io.alluvium.kafka;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * Turns whatever went wrong into the exceptions that Kafka handles well.
 *
 * <ul>
 *   <li>Missing: {@link RemoteResourceNotFoundException}; Kafka then goes without a transaction index.
 *   <li>Retryable fetches: RetriableRemoteStorageException, which brokers before 4.2 do not have.
 *   <li>Copies and deletes: never the retriable kind, since Kafka then leaves out its own clean-up.
 *   <li>Everything else, errors of the virtual machine included: {@link RemoteStorageException}. An Error that left a
 *       copy would end the uploads of its partition for good, without a word in the log.
 * </ul>
 */
final class Failures {
    private static final MethodHandle RETRIABLE = retriableConstructor();
    /** For when there is no memory left to make one. */
    private static final RemoteStorageException LAST_RESORT =
        new RemoteStorageException("alluvium: a virtual machine error left no room to describe it");

    private static final IOException LAST_RESORT_IO =
        new IOException("alluvium: a virtual machine error left no room to describe it");

    private static final ConfigException LAST_RESORT_CONFIGURATION =
        new ConfigException("alluvium: a virtual machine error left no room to describe it");

    private Failures() {}

    private static MethodHandle retriableConstructor() {
        try {
            Class<?> retriable = Class.forName(
                "org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException",
                true,
                RemoteStorageException.class.getClassLoader());
            return MethodHandles.publicLookup()
                .findConstructor(retriable, MethodType.methodType(void.class, String.class))
                .asType(MethodType.methodType(RemoteStorageException.class, String.class));
        } catch (ReflectiveOperationException | LinkageError | ClassCastException absentInThisBroker) {
            return null;
        }
    }

    /** Makes one of each while there is memory and stack to do so; later calls then find all they need linked. */
    static void prepare() {
        for (Operation operation : Operation.values()) {
            for (int kind = 0; kind <= NativeException.NOT_FOUND; kind++) {
                Throwable failure = new NativeException(kind, true, "");
                remote(operation, failure);
            }
            remote(operation, new IllegalStateException());
        }
        configuration(new IllegalStateException());
        reading(new IllegalStateException());
        reading(interruptedRead());
        reading(closedStream());
    }

    static RemoteStorageException remote(Operation operation, Throwable thrown) {
        try {
            if (thrown instanceof RemoteStorageException) {
                return (RemoteStorageException) thrown;
            }
            if (thrown instanceof NativeException) {
                return remote(operation, (NativeException) thrown);
            }
            return new RemoteStorageException(unexpected(operation, thrown), thrown);
        } catch (Throwable again) {
            return LAST_RESORT;
        }
    }

    private static RemoteStorageException remote(Operation operation, NativeException failure) throws Throwable {
        String message = failure.getMessage();
        if (failure.kind() == NativeException.NOT_FOUND) {
            return new RemoteResourceNotFoundException(message);
        }
        boolean fetching = operation == Operation.FETCH || operation == Operation.FETCH_INDEX;
        if (fetching && failure.isRetryable() && RETRIABLE != null) {
            return (RemoteStorageException) RETRIABLE.invokeExact(message);
        }
        return new RemoteStorageException(message);
    }

    static IOException reading(Throwable thrown) {
        try {
            if (thrown instanceof IOException) {
                return (IOException) thrown;
            }
            if (thrown instanceof NativeException) {
                return new IOException(thrown.getMessage());
            }
            return new IOException(unexpected(Operation.FETCH, thrown), thrown);
        } catch (Throwable again) {
            return LAST_RESORT_IO;
        }
    }

    static InterruptedIOException interruptedRead() {
        return new InterruptedIOException("the reading thread was interrupted");
    }

    static IOException closedStream() {
        try {
            return new IOException("the stream is closed");
        } catch (Throwable again) {
            return LAST_RESORT_IO;
        }
    }

    static ConfigException configuration(Throwable thrown) {
        try {
            if (thrown instanceof ConfigException) {
                return (ConfigException) thrown;
            }
            if (thrown instanceof NativeException) {
                return new ConfigException(thrown.getMessage());
            }
            ConfigException configuration = new ConfigException(unexpected(Operation.CONFIGURE, thrown));
            configuration.initCause(thrown);
            return configuration;
        } catch (Throwable again) {
            return LAST_RESORT_CONFIGURATION;
        }
    }

    private static String unexpected(Operation operation, Throwable thrown) {
        return "alluvium could not " + operation + ": " + thrown;
    }
}

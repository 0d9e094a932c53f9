package io.alluvium.kafka;

import java.io.IOException;
import java.io.InputStream;
import java.lang.ref.Cleaner;
import java.util.Objects;

/**
 * A segment or an index, read from the library chunk by chunk.
 *
 * <p>Kafka leaves a stream open after a failed read, so a stream that failed closes itself, and a Cleaner closes one that
 * was forgotten. A read never returns 0 for a wanted byte. An interrupt ends a read at once; the native load behind it
 * goes on for the next reader. Meant for one thread; {@link #close} may come from any.
 */
final class SegmentInputStream extends InputStream {
    /** Reads below this go through the buffer: crossing into native code costs more than copying. */
    private static final int SMALL_READ_BYTES = 512;
    /** Enough for a few batch headers; Kafka reads one or two and then all the rest at once. */
    private static final int BUFFER_BYTES = 1024;
    private static final long NO_READER = 0;

    /**
     * Made by the first {@link #prepare}. Not by the initialiser of the class: where no thread can be started, that would
     * fail once and for all.
     */
    private static volatile Cleaner cleaner;

    private final long reader;
    private final Cleaner.Cleanable release;
    private volatile boolean closed;
    private boolean ended;
    /** Made by the first small read; most streams of a segment have one for the first batch header. */
    private byte[] buffer;
    private int bufferPosition;
    private int bufferLimit;

    SegmentInputStream(long reader) {
        this.reader = reader;
        this.release = cleaner.register(this, new Release(reader));
    }

    /** Makes streams possible, or fails and may be called again. A stream that fails at once links what streams need. */
    static synchronized void prepare() {
        if (cleaner == null) {
            cleaner = Cleaner.create();
        }
        try (SegmentInputStream stream = new SegmentInputStream(NO_READER)) {
            stream.read();
        } catch (IOException unknownReader) {
            // As it should be.
        }
    }

    @Override
    public int read() throws IOException {
        failIfClosed();
        if (bufferPosition == bufferLimit && !fill()) {
            return -1;
        }
        return buffer[bufferPosition++] & 0xff;
    }

    @Override
    public int read(byte[] target, int offset, int length) throws IOException {
        Objects.checkFromIndexSize(offset, length, target.length);
        if (length == 0) {
            return 0;
        }
        if (bufferPosition == bufferLimit) {
            if (length >= SMALL_READ_BYTES) {
                return readNative(target, offset, length);
            }
            if (!fill()) {
                return -1;
            }
        } else {
            failIfClosed();
        }
        int taken = Math.min(length, bufferLimit - bufferPosition);
        System.arraycopy(buffer, bufferPosition, target, offset, taken);
        bufferPosition += taken;
        return taken;
    }

    private boolean fill() throws IOException {
        try {
            if (buffer == null) {
                buffer = new byte[BUFFER_BYTES];
            }
        } catch (OutOfMemoryError error) {
            close();
            throw Failures.reading(error);
        }
        int taken = readNative(buffer, 0, BUFFER_BYTES);
        bufferPosition = 0;
        bufferLimit = Math.max(taken, 0);
        return taken > 0;
    }

    private int readNative(byte[] target, int offset, int length) throws IOException {
        failIfClosed();
        if (ended) {
            return -1;
        }
        try {
            while (true) {
                if (Thread.currentThread().isInterrupted()) {
                    throw Failures.interruptedRead();
                }
                int taken = Native.read(reader, target, offset, length, Tasks.SLICE_MS);
                if (taken > 0) {
                    return taken;
                }
                if (taken == Native.READ_END) {
                    ended = true;
                    release.clean();
                    return -1;
                }
            }
        } catch (Throwable thrown) {
            close();
            throw Failures.reading(thrown);
        }
    }

    private void failIfClosed() throws IOException {
        if (closed) {
            throw Failures.closedStream();
        }
    }

    @Override
    public void close() {
        closed = true;
        release.clean();
    }

    /** What the Cleaner does: must not hold the stream. */
    static final class Release implements Runnable {
        private final long reader;

        Release(long reader) {
            this.reader = reader;
        }

        @Override
        public void run() {
            try {
                Native.closeReader(reader);
            } catch (Throwable thrown) {
                // Nobody is left to tell; closing the engine frees what this could not.
            }
        }
    }
}

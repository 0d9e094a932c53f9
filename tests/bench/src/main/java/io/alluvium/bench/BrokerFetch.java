package io.alluvium.bench;

import io.alluvium.bench.Reading.WrongBytes;
import java.io.IOException;
import java.io.InputStream;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * One fetch as Kafka's RemoteLogManager makes it: a stream is opened with a start position only; of each batch 17 bytes
 * are read and then the rest, until one holds the wanted offset; then what is left of 1 MiB is read in one loop, and
 * the stream is closed.
 */
final class BrokerFetch {
    /** Default of max.partition.fetch.bytes. */
    static final int FETCH_BYTES = 1 << 20;

    // The fields of a batch of version 2: KIP-98, "Message Format".
    private static final int LENGTH_AT = 8;
    private static final int LENGTH_END = 12;
    private static final int HEADER_BYTES = 17;
    private static final int LAST_OFFSET_DELTA_AT = 23;
    private static final int LAST_OFFSET_DELTA_END = 27;

    private final RemoteStorageManager plugin;
    private final Options.OpenAt openAt;

    BrokerFetch(RemoteStorageManager plugin, Options.OpenAt openAt) {
        this.plugin = plugin;
        this.openAt = openAt;
    }

    /**
     * Fetches from the offset on, which must be the first of a batch, and tells the offset behind the last whole batch
     * that came.
     */
    long fetch(Reading reading, TieredSegment segment, long offset) throws IOException, RemoteStorageException {
        LocalSegment local = segment.local();
        int position = local.positionOf(offset, openAt);
        reading.begin();
        int read;
        int first;
        try (InputStream stream = plugin.fetchLogSegment(segment.metadata(), position)) {
            int filled = 0;
            do {
                first = filled;
                filled = readBatch(reading, stream, filled);
            } while (lastOffset(reading, first) < offset);
            read = readFully(reading, stream, filled, first + FETCH_BYTES);
        }
        reading.end();
        if (read < first + FETCH_BYTES && position + read != local.sizeInBytes()) {
            throw new WrongBytes("the stream from " + position + " of " + local.baseOffset() + ".log ended after " + read + " bytes");
        }
        reading.compare(local, position, read);
        int behind = first;
        long next = offset;
        while (read - behind >= LAST_OFFSET_DELTA_END && read - behind >= sizeOfBatch(reading, behind)) {
            next = lastOffset(reading, behind) + 1;
            behind += sizeOfBatch(reading, behind);
        }
        reading.count(read, behind - first);
        return next;
    }

    private static int readBatch(Reading reading, InputStream stream, int from) throws IOException {
        int header = readFully(reading, stream, from, from + HEADER_BYTES);
        if (header < from + HEADER_BYTES) {
            throw new WrongBytes("the stream ended in the header of a batch, after " + header + " bytes");
        }
        int size = sizeOfBatch(reading, from);
        if (size < LAST_OFFSET_DELTA_END || size > FETCH_BYTES) {
            throw new WrongBytes("not a batch: its length is " + size + " bytes");
        }
        int end = readFully(reading, stream, header, from + size);
        if (end < from + size) {
            throw new WrongBytes("the stream ended in a batch, after " + end + " bytes");
        }
        return end;
    }

    /** Reads up to the end of the stream, or until the buffer is filled to the limit; tells how far it is filled. */
    static int readFully(Reading reading, InputStream stream, int from, int limit) throws IOException {
        int filled = from;
        while (filled < limit) {
            int count = stream.read(reading.buffer, filled, limit - filled);
            if (count < 0) {
                break;
            }
            filled += count;
        }
        return filled;
    }

    private static int sizeOfBatch(Reading reading, int at) {
        return LENGTH_END + reading.view.getInt(at + LENGTH_AT);
    }

    private static long lastOffset(Reading reading, int at) {
        return reading.view.getLong(at) + reading.view.getInt(at + LAST_OFFSET_DELTA_AT);
    }
}

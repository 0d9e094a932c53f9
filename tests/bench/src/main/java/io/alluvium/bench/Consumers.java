package io.alluvium.bench;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Path;
import java.util.List;
import java.util.SplittableRandom;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;

/** The ways in which segments are read. Each runs on the thread that calls it. */
final class Consumers {
    private static final int READ_BYTES = 1 << 20;

    private final RemoteStorageManager plugin;
    private final BrokerFetch broker;

    Consumers(RemoteStorageManager plugin, Options.OpenAt openAt) {
        this.plugin = plugin;
        broker = new BrokerFetch(plugin, openAt);
    }

    /**
     * One stream a segment, read to its end in pieces of 1 MiB, each of them timed: the first with the opening of the
     * stream and the closing of the one before.
     */
    void wholeStream(Reading reading, List<TieredSegment> segments) throws IOException, RemoteStorageException {
        for (TieredSegment segment : segments) {
            int size = segment.local().sizeInBytes();
            reading.begin();
            try (InputStream stream = plugin.fetchLogSegment(segment.metadata(), 0)) {
                for (int position = 0; position < size; position += READ_BYTES) {
                    int wanted = Math.min(READ_BYTES, size - position);
                    int count = BrokerFetch.readFully(reading, stream, 0, wanted);
                    reading.end();
                    reading.compare(segment.local(), position, count);
                    if (count < wanted) {
                        throw new Reading.WrongBytes("the stream ended at " + (position + count) + " of " + size);
                    }
                    reading.count(count, count);
                    reading.begin();
                }
                if (stream.read() >= 0) {
                    throw new Reading.WrongBytes("the stream goes on behind the end of the segment");
                }
            }
            reading.pause();
        }
    }

    /** As a consumer that catches up: fetch after fetch, from segment to segment. */
    void sequential(Reading reading, List<TieredSegment> segments) throws IOException, RemoteStorageException {
        for (TieredSegment segment : segments) {
            sequentialFrom(reading, segment, segment.local().baseOffset());
        }
    }

    /** The same in one segment, from an offset to its end. */
    void sequentialFrom(Reading reading, TieredSegment segment, long from) throws IOException, RemoteStorageException {
        long offset = from;
        while (offset <= segment.local().endOffset()) {
            offset = broker.fetch(reading, segment, offset);
        }
    }

    /** Fetches at batches that chance chooses. */
    void random(Reading reading, List<TieredSegment> segments, int fetches, long seed)
            throws IOException, RemoteStorageException {
        SplittableRandom random = new SplittableRandom(seed);
        for (int fetch = 0; fetch < fetches; fetch++) {
            TieredSegment segment = segments.get(random.nextInt(segments.size()));
            int batch = random.nextInt(segment.local().batches());
            broker.fetch(reading, segment, segment.local().batchOffset(batch));
        }
    }

    /**
     * What the first fetch of a segment takes: the three indexes, one after the other, and a fetch. One latency for all
     * four.
     */
    void firstFetch(Reading reading, List<TieredSegment> segments) throws IOException, RemoteStorageException {
        for (TieredSegment segment : segments) {
            index(reading, segment, IndexType.OFFSET, ".index");
            index(reading, segment, IndexType.TIMESTAMP, ".timeindex");
            index(reading, segment, IndexType.TRANSACTION, ".txnindex");
            broker.fetch(reading, segment, segment.local().baseOffset());
        }
    }

    private void index(Reading reading, TieredSegment segment, IndexType type, String suffix)
            throws IOException, RemoteStorageException {
        Path file = segment.local().indexFile(suffix);
        int count = 0;
        reading.begin();
        try (InputStream stream = plugin.fetchIndex(segment.metadata(), type)) {
            count = BrokerFetch.readFully(reading, stream, 0, Reading.BUFFER_BYTES);
        } catch (RemoteResourceNotFoundException absent) {
            // Allowed of a transaction index that is empty; compared with what was given of it, which is nothing.
        }
        reading.pause();
        reading.compare(file, count);
        reading.count(count, count);
    }
}

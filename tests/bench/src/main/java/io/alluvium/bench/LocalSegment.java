package io.alluvium.bench;

import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.storage.internals.log.OffsetIndex;

/**
 * The files of one closed segment, as a broker hands them to a plugin, and what is known of the batches inside.
 *
 * <p>Invariant: the files do not change, so that every byte a plugin gives back can be compared with them.
 */
final class LocalSegment implements AutoCloseable {
    static final int BROKER_ID = 1;

    private final Path log;
    private final Path snapshot;
    private final long baseOffset;
    private final long endOffset;
    private final long maxTimestamp;
    private final NavigableMap<Integer, Long> epochs;
    private final long[] batchOffsets;
    private final int[] batchPositions;
    private final int sizeInBytes;
    private final FileChannel channel;
    private final OffsetIndex offsets;

    /**
     * @param epochs the leader epochs from the begin of the log to the end of this segment, each with its first offset
     * @param batchOffsets the first offset of each batch
     */
    LocalSegment(Path log, Path snapshot, long baseOffset, long endOffset, long maxTimestamp,
            NavigableMap<Integer, Long> epochs, long[] batchOffsets, int[] batchPositions) {
        this.log = log;
        this.snapshot = snapshot;
        this.baseOffset = baseOffset;
        this.endOffset = endOffset;
        this.maxTimestamp = maxTimestamp;
        this.epochs = new TreeMap<>(epochs);
        this.batchOffsets = batchOffsets;
        this.batchPositions = batchPositions;
        try {
            channel = FileChannel.open(log, StandardOpenOption.READ);
            sizeInBytes = Math.toIntExact(channel.size());
            offsets = new OffsetIndex(indexFile(".index").toFile(), baseOffset, -1, false);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    int sizeInBytes() {
        return sizeInBytes;
    }

    long baseOffset() {
        return baseOffset;
    }

    long endOffset() {
        return endOffset;
    }

    int batches() {
        return batchOffsets.length;
    }

    long batchOffset(int batch) {
        return batchOffsets[batch];
    }

    /** Where Kafka begins to read when a consumer wants this offset, the first of a batch. */
    int positionOf(long offset, Options.OpenAt openAt) {
        if (openAt == Options.OpenAt.INDEX) {
            return offsets.lookup(offset).position();
        }
        return batchPositions[Arrays.binarySearch(batchOffsets, offset)];
    }

    /** The first offset of the last batch that begins at or before the position. */
    long offsetAt(int position) {
        int found = Arrays.binarySearch(batchPositions, position);
        return batchOffsets[found >= 0 ? found : -found - 2];
    }

    /** The index file with this suffix. */
    Path indexFile(String suffix) {
        return log.resolveSibling(log.getFileName().toString().replace(".log", suffix));
    }

    /** Fills the buffer, up to its limit, with the bytes of the file from the position on. */
    void read(ByteBuffer into, int position) throws IOException {
        int begin = into.position();
        while (into.hasRemaining()) {
            if (channel.read(into, (long) position + into.position() - begin) < 0) {
                throw new EOFException(log + " has no " + into.limit() + " bytes at " + position);
            }
        }
    }

    /** The argument of copyLogSegmentData. */
    LogSegmentData data() {
        Path transactions = indexFile(".txnindex");
        StringBuilder checkpoint = new StringBuilder("0\n" + epochs.size() + "\n");
        epochs.forEach((epoch, offset) -> checkpoint.append(epoch).append(' ').append(offset).append('\n'));
        return new LogSegmentData(log, indexFile(".index"), indexFile(".timeindex"),
                Files.exists(transactions) ? Optional.of(transactions) : Optional.empty(), snapshot,
                ByteBuffer.wrap(checkpoint.toString().getBytes(StandardCharsets.UTF_8)));
    }

    /** What the broker says of the segment when it is to be copied under this id. */
    RemoteLogSegmentMetadata metadata(TopicIdPartition partition, Uuid id) {
        int lastEpoch = epochs.lastKey();
        Map<Integer, Long> ofSegment = Map.of(lastEpoch, Math.max(baseOffset, epochs.get(lastEpoch)));
        return new RemoteLogSegmentMetadata(new RemoteLogSegmentId(partition, id), baseOffset, endOffset, maxTimestamp,
                BROKER_ID, maxTimestamp, sizeInBytes, ofSegment);
    }

    @Override
    public void close() {
        try {
            channel.close();
            offsets.close();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}

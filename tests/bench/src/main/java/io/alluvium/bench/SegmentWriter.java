package io.alluvium.bench;

import io.alluvium.harness.HarnessException;
import io.alluvium.harness.RecordGenerator;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.SplittableRandom;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.TransactionVersion;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.CompletedTxn;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerAppendInfo;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/**
 * Writes successive segments of one partition with Kafka's own log classes, so that batches, indexes and producer snapshots
 * are what a broker would have on its disk.
 *
 * <p>Flow: three producers take turns; batches have 16 KiB to 1 MiB, evenly spread on a logarithmic scale. One producer
 * is transactional, ends a transaction after some batches and aborts every fourth. Each segment has a leader epoch of
 * its own.
 *
 * <p>Invariant: the bytes follow from the seed and the size alone.
 */
final class SegmentWriter {
    private static final int PRODUCERS = 3;
    private static final int TRANSACTIONAL_PRODUCER = 2;
    private static final int BATCHES_A_TRANSACTION = 8;
    private static final int ABORTED_ONE_IN = 4;
    private static final short PRODUCER_EPOCH = 0;
    private static final int BATCH_BYTES_MIN = 16 * 1024;
    private static final int BATCH_BYTES_MAX = 1024 * 1024;
    /** Room for a record more than asked for, and for a batch that compresses less than the one before it. */
    private static final double OVERSHOOT = 0.9;
    private static final int TRANSACTION_TIMEOUT_MILLIS = 900_000;
    private static final int PRODUCER_EXPIRATION_MILLIS = 86_400_000;

    private final Path directory;
    private final Content content;
    private final int segmentBytes;
    private final RecordGenerator records;
    private final SplittableRandom random;
    private final ProducerStateManager producers;
    private final LogConfig configuration = new LogConfig(Map.of());
    private final NavigableMap<Integer, Long> epochs = new TreeMap<>();
    private final ByteBuffer buffer = ByteBuffer.allocate(4 * BATCH_BYTES_MAX);
    private final int[] sequences = new int[PRODUCERS];
    private float compressionRatio = 1;
    private long nextOffset;
    private int turn;
    private int batchesOfTransaction;
    private int transactions;

    SegmentWriter(Path directory, Content content, int segmentBytes, long seed) {
        this.directory = directory;
        this.content = content;
        this.segmentBytes = segmentBytes;
        records = new RecordGenerator(seed);
        random = new SplittableRandom(seed);
        try {
            producers = new ProducerStateManager(new TopicPartition("bench", 0), directory.toFile(), TRANSACTION_TIMEOUT_MILLIS,
                    new ProducerStateManagerConfig(PRODUCER_EXPIRATION_MILLIS, false), Time.SYSTEM);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** Writes the next segment; it is closed, and its indexes are trimmed, when this returns. */
    LocalSegment next() {
        long baseOffset = nextOffset;
        int epoch = epochs.size();
        epochs.put(epoch, baseOffset);
        List<Long> offsets = new ArrayList<>();
        List<Integer> positions = new ArrayList<>();
        try (LogSegment segment = LogSegment.open(directory.toFile(), baseOffset, configuration, Time.SYSTEM, 0, false)) {
            MemoryRecords batch = nextBatch(epoch);
            do {
                offsets.add(batch.batches().iterator().next().baseOffset());
                positions.add(segment.size());
                append(segment, batch);
                batch = nextBatch(epoch);
            } while (segment.size() + batch.sizeInBytes() <= segmentBytes);
            // The batch that found no room was not appended: its producer's turn comes again in the next segment.
            segment.onBecomeInactiveSegment();
            producers.updateMapEndOffset(nextOffset);
            producers.takeSnapshot();
            Path log = segment.log().file().toPath();
            Path snapshot = producers.fetchSnapshot(nextOffset).orElseThrow().toPath();
            return new LocalSegment(log, snapshot, baseOffset, nextOffset - 1, segment.largestTimestamp(), epochs,
                    offsets.stream().mapToLong(Long::longValue).toArray(),
                    positions.stream().mapToInt(Integer::intValue).toArray());
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private MemoryRecords nextBatch(int leaderEpoch) {
        if (turn % PRODUCERS == TRANSACTIONAL_PRODUCER && batchesOfTransaction == BATCHES_A_TRANSACTION) {
            boolean aborted = transactions % ABORTED_ONE_IN == ABORTED_ONE_IN - 1;
            EndTransactionMarker marker =
                    new EndTransactionMarker(aborted ? ControlRecordType.ABORT : ControlRecordType.COMMIT, 0);
            return MemoryRecords.withEndTransactionMarker(nextOffset, records.timestamp(nextOffset), leaderEpoch,
                    TRANSACTIONAL_PRODUCER, PRODUCER_EPOCH, marker);
        }
        return dataBatch(turn % PRODUCERS, leaderEpoch);
    }

    private MemoryRecords dataBatch(int producer, int leaderEpoch) {
        double spread = Math.log((double) BATCH_BYTES_MAX / BATCH_BYTES_MIN);
        int wanted = (int) (BATCH_BYTES_MIN * Math.exp(random.nextDouble() * spread) * OVERSHOOT);
        buffer.clear();
        try (MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, RecordBatch.CURRENT_MAGIC_VALUE,
                content.compression(), TimestampType.CREATE_TIME, nextOffset, RecordBatch.NO_TIMESTAMP, producer, PRODUCER_EPOCH,
                sequences[producer], producer == TRANSACTIONAL_PRODUCER, leaderEpoch)) {
            builder.setEstimatedCompressionRatio(compressionRatio);
            long offset = nextOffset;
            do {
                builder.appendWithOffset(offset, records.timestamp(offset), records.key(0, offset), records.value(0, offset));
                offset++;
            } while (builder.estimatedSizeInBytes() < wanted);
            MemoryRecords batch = builder.build();
            compressionRatio = (float) builder.compressionRatio();
            if (batch.sizeInBytes() > BATCH_BYTES_MAX) {
                throw new HarnessException("a batch became " + batch.sizeInBytes() + " bytes long; " + wanted + " were wanted");
            }
            return batch;
        }
    }

    /** What an append does in a broker's log, in its order. */
    private void append(LogSegment segment, MemoryRecords records) throws IOException {
        RecordBatch batch = records.batches().iterator().next();
        segment.append(batch.lastOffset(), records);
        AppendOrigin origin = batch.isControlBatch() ? AppendOrigin.COORDINATOR : AppendOrigin.CLIENT;
        ProducerAppendInfo info = producers.prepareUpdate(batch.producerId(), origin);
        Optional<CompletedTxn> completed = info.append(batch, Optional.empty(), TransactionVersion.TV_1.featureLevel());
        producers.update(info);
        if (completed.isPresent()) {
            segment.updateTxnIndex(completed.get(), producers.lastStableOffset(completed.get()));
            producers.completeTxn(completed.get());
        }
        producers.updateMapEndOffset(batch.nextOffset());
        nextOffset = batch.nextOffset();
        if (batch.isControlBatch()) {
            batchesOfTransaction = 0;
            transactions++;
            return;
        }
        int producer = turn % PRODUCERS;
        sequences[producer] += batch.countOrNull();
        batchesOfTransaction += producer == TRANSACTIONAL_PRODUCER ? 1 : 0;
        turn++;
    }
}

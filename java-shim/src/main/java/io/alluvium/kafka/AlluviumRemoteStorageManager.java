package io.alluvium.kafka;

import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Kafka's tiered storage on S3: the class to name in {@code remote.log.storage.manager.class.name}.
 *
 * <p>Arguments go down, bytes come up, failures are mapped; everything else is in the native library. All methods may be
 * called at the same time. No Throwable leaves but those the interface allows: {@link ConfigException} from
 * {@link #configure}, {@link RemoteStorageException} and its subclasses from the others.
 */
public final class AlluviumRemoteStorageManager implements RemoteStorageManager {
    private static final Logger LOG = LoggerFactory.getLogger(AlluviumRemoteStorageManager.class);

    private static final long NO_END = Long.MAX_VALUE;

    /** For when the class that describes failures cannot be had. */
    private static final ConfigException LAST_RESORT =
        new ConfigException("alluvium: the jar or the memory of the virtual machine is damaged");

    private enum State { NEW, OPEN, CLOSED }

    /** Guards changes of the state; calls only read it. */
    private final Object lifecycle = new Object();

    private volatile State state = State.NEW;
    /** Written before the state becomes OPEN. */
    private long engine;
    private Metrics metrics;

    /** Called by Kafka, reflectively. */
    public AlluviumRemoteStorageManager() {}

    @Override
    public void configure(Map<String, ?> configs) {
        synchronized (lifecycle) {
            try {
                if (state != State.NEW) {
                    throw new ConfigException("alluvium: this instance was configured or closed before");
                }
                Classes.load();
                failOnce();
                open(new Settings(configs));
            } catch (Throwable thrown) {
                throw refusal(thrown);
            }
        }
    }

    /** Links what failures need: without memory to do so, they would leave as errors. */
    private void failOnce() {
        try {
            deleteLogSegmentData(null);
        } catch (RemoteStorageException notConfiguredYet) {
            // As it should be.
        }
    }

    private static ConfigException refusal(Throwable thrown) {
        try {
            return Failures.configuration(thrown);
        } catch (Throwable again) {
            return LAST_RESORT;
        }
    }

    private void open(Settings settings) throws Exception {
        String version = NativeLibrary.load(settings);
        Classes.prepareCalls();
        LogPump.acquire();
        long opened = 0;
        try {
            opened = Native.open(settings.keysAndValues());
            metrics = Metrics.register(opened, settings.brokerId());
            engine = opened;
            state = State.OPEN;
        } finally {
            if (state != State.OPEN) {
                closeQuietly(opened);
                LogPump.release();
            }
        }
        QuietLog.info(LOG, "alluvium {} is open", version);
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
        throws RemoteStorageException {
        try {
            failIfNotOpen();
            byte[] encoded = SegmentEncoder.encode(segment);
            String[] paths = {
                name(data.logSegment()),
                name(data.offsetIndex()),
                name(data.timeIndex()),
                data.transactionIndex().isPresent() ? name(data.transactionIndex().get()) : null,
                name(data.producerSnapshotIndex())
            };
            byte[] epochs = bytes(data.leaderEpochIndex());
            byte[] result = Tasks.result();
            return copied(Native.startCopy(engine, encoded, paths, epochs), encoded, result);
        } catch (Throwable thrown) {
            throw Failures.remote(Operation.COPY, thrown);
        }
    }

    private Optional<CustomMetadata> copied(long task, byte[] encoded, byte[] result) throws Throwable {
        try {
            int length = Tasks.await(task, result);
            if (length == 0) {
                // A failure that could not even be thrown looks like this; Kafka must not take it for a copy.
                throw new RemoteStorageException("alluvium: the copy ended without a result");
            }
            return Optional.of(new CustomMetadata(Arrays.copyOf(result, length)));
        } catch (NativeException failure) {
            // The library has removed what it had written.
            throw failure;
        } catch (Throwable thrown) {
            deleteQuietly(encoded, result);
            throw thrown;
        }
    }

    /** Removes a copy that Kafka will be told has failed, though it may be complete. */
    private void deleteQuietly(byte[] encoded, byte[] result) {
        try {
            Tasks.await(Native.startDelete(engine, encoded), result);
        } catch (Throwable thrown) {
            QuietLog.warn(LOG, "what a failed copy has written could not be removed", thrown);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int startPosition)
        throws RemoteStorageException {
        return fetch(segment, startPosition, NO_END);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int startPosition, int endPosition)
        throws RemoteStorageException {
        return fetch(segment, startPosition, endPosition);
    }

    private InputStream fetch(RemoteLogSegmentMetadata segment, int start, long endInclusive)
        throws RemoteStorageException {
        try {
            if (endInclusive < start) {
                throw new RemoteStorageException(
                    "the end position " + endInclusive + " lies before the start position " + start);
            }
            failIfNotOpen();
            if (start < 0 || start > segment.segmentSizeInBytes()) {
                throw new RemoteStorageException("the start position " + start + " is not in the segment of "
                    + segment.segmentSizeInBytes() + " bytes: " + segment.remoteLogSegmentId());
            }
            byte[] encoded = SegmentEncoder.encode(segment);
            byte[] result = Tasks.result();
            long last = endInclusive == NO_END ? Native.TO_THE_END : endInclusive;
            return stream(Native.startOpenSegment(engine, encoded, start, last), result);
        } catch (Throwable thrown) {
            throw Failures.remote(Operation.FETCH, thrown);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType indexType) throws RemoteStorageException {
        try {
            failIfNotOpen();
            byte[] encoded = SegmentEncoder.encode(segment);
            byte[] result = Tasks.result();
            return stream(Native.startOpenIndex(engine, encoded, number(indexType)), result);
        } catch (Throwable thrown) {
            throw Failures.remote(Operation.FETCH_INDEX, thrown);
        }
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        try {
            failIfNotOpen();
            byte[] encoded = SegmentEncoder.encode(segment);
            byte[] result = Tasks.result();
            Tasks.await(Native.startDelete(engine, encoded), result);
        } catch (Throwable thrown) {
            throw Failures.remote(Operation.DELETE, thrown);
        }
    }

    /** Refuses new calls, ends running ones and frees everything, within {@code close.timeout.ms}. */
    @Override
    public void close() {
        synchronized (lifecycle) {
            State before = state;
            state = State.CLOSED;
            if (before != State.OPEN) {
                return;
            }
            try {
                metrics.unregister();
            } catch (Throwable thrown) {
                QuietLog.warn(LOG, "the MBeans could not be removed", thrown);
            }
            closeQuietly(engine);
            try {
                LogPump.release();
            } catch (Throwable thrown) {
                QuietLog.warn(LOG, "the last log lines may be lost", thrown);
            }
        }
    }

    private static void closeQuietly(long engine) {
        if (engine == 0) {
            return;
        }
        try {
            Native.close(engine);
        } catch (Throwable thrown) {
            QuietLog.warn(LOG, "closing failed", thrown);
        }
    }

    private void failIfNotOpen() throws RemoteStorageException {
        State now = state;
        if (now != State.OPEN) {
            throw new RemoteStorageException(
                now == State.NEW ? "alluvium is not configured yet" : "alluvium is closed");
        }
    }

    /** A stream that could not be made must not leave its reader behind. */
    private static InputStream stream(long task, byte[] result) throws NativeException {
        long reader = Tasks.reader(result, Tasks.await(task, result));
        try {
            return new SegmentInputStream(reader);
        } catch (Throwable thrown) {
            Native.closeReader(reader);
            throw thrown;
        }
    }

    private static String name(Path path) {
        return path.toAbsolutePath().toString();
    }

    /** Kafka keeps using the buffer, so its position must not move. */
    private static byte[] bytes(ByteBuffer buffer) {
        ByteBuffer own = buffer.duplicate();
        byte[] copied = new byte[own.remaining()];
        own.get(copied);
        return copied;
    }

    /** By name: for a switch on an enum of another library the compiler makes one more class. */
    private static int number(IndexType indexType) {
        switch (indexType.name()) {
            case "OFFSET":
                return 0;
            case "TIMESTAMP":
                return 1;
            case "PRODUCER_SNAPSHOT":
                return 2;
            case "TRANSACTION":
                return 3;
            case "LEADER_EPOCH":
                return 4;
            default:
                throw new IllegalArgumentException("unknown index type " + indexType);
        }
    }
}

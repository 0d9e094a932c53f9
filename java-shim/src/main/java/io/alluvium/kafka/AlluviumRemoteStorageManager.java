package io.alluvium.kafka;

import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Path;
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

    private static final long NO_END = -1;

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
                Failures.prepare();
                open(new Settings(configs));
            } catch (Throwable thrown) {
                throw Failures.configuration(thrown);
            }
        }
    }

    private void open(Settings settings) throws Exception {
        String version = NativeLibrary.load(settings);
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
        LOG.info("alluvium {} is open", version);
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
                data.transactionIndex().map(AlluviumRemoteStorageManager::name).orElse(null),
                name(data.producerSnapshotIndex())
            };
            long task = Native.startCopy(engine, encoded, paths, bytes(data.leaderEpochIndex()));
            byte[] customMetadata = Tasks.await(task);
            if (customMetadata.length == 0) {
                // A failure that could not even be thrown looks like this; Kafka must not take it for a copy.
                throw new RemoteStorageException("alluvium: the copy ended without a result");
            }
            return Optional.of(new CustomMetadata(customMetadata));
        } catch (Throwable thrown) {
            throw Failures.remote(Operation.COPY, thrown);
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
        if (endPosition < startPosition) {
            throw new RemoteStorageException(
                "the end position " + endPosition + " lies before the start position " + startPosition);
        }
        return fetch(segment, startPosition, endPosition);
    }

    private InputStream fetch(RemoteLogSegmentMetadata segment, int start, long endInclusive)
        throws RemoteStorageException {
        try {
            failIfNotOpen();
            if (start < 0 || start > segment.segmentSizeInBytes()) {
                throw new RemoteStorageException("the start position " + start + " is not in the segment of "
                    + segment.segmentSizeInBytes() + " bytes: " + segment.remoteLogSegmentId());
            }
            long task = Native.startOpenSegment(engine, SegmentEncoder.encode(segment), start, endInclusive);
            return stream(Tasks.awaitReader(task));
        } catch (Throwable thrown) {
            throw Failures.remote(Operation.FETCH, thrown);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType indexType) throws RemoteStorageException {
        try {
            failIfNotOpen();
            long task = Native.startOpenIndex(engine, SegmentEncoder.encode(segment), number(indexType));
            return stream(Tasks.awaitReader(task));
        } catch (Throwable thrown) {
            throw Failures.remote(Operation.FETCH_INDEX, thrown);
        }
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        try {
            failIfNotOpen();
            Tasks.await(Native.startDelete(engine, SegmentEncoder.encode(segment)));
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
                warn("the MBeans could not be removed", thrown);
            }
            closeQuietly(engine);
            try {
                LogPump.release();
            } catch (Throwable thrown) {
                warn("the last log lines may be lost", thrown);
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
            warn("closing failed", thrown);
        }
    }

    private static void warn(String what, Throwable thrown) {
        try {
            LOG.warn("alluvium: {}", what, thrown);
        } catch (Throwable again) {
            // Closing must not fail because the log does.
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
    private static InputStream stream(long reader) throws NativeException {
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

    private static int number(IndexType indexType) {
        switch (indexType) {
            case OFFSET:
                return 0;
            case TIMESTAMP:
                return 1;
            case PRODUCER_SNAPSHOT:
                return 2;
            case TRANSACTION:
                return 3;
            case LEADER_EPOCH:
                return 4;
            default:
                throw new IllegalArgumentException("unknown index type " + indexType);
        }
    }
}

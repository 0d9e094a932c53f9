package io.alluvium.bench;

import java.util.Optional;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** A segment that a plugin was given under an id of its own, and what the broker keeps to find it again. */
final class TieredSegment {
    private final LocalSegment local;
    private RemoteLogSegmentMetadata metadata;

    TieredSegment(LocalSegment local, TopicIdPartition partition, Uuid id) {
        this.local = local;
        metadata = local.metadata(partition, id);
    }

    /** Copies it; from then on the metadata is that of a finished copy. */
    void copy(RemoteStorageManager plugin) throws RemoteStorageException {
        Optional<CustomMetadata> custom = plugin.copyLogSegmentData(metadata, local.data());
        metadata = metadata.createWithUpdates(new RemoteLogSegmentMetadataUpdate(metadata.remoteLogSegmentId(),
                metadata.eventTimestampMs(), custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, LocalSegment.BROKER_ID));
    }

    LocalSegment local() {
        return local;
    }

    RemoteLogSegmentMetadata metadata() {
        return metadata;
    }
}

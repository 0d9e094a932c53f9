package io.alluvium.kafka;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.NavigableMap;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;

/**
 * Writes a segment's metadata for the library; rust/jni/src/args.rs reads it. Private to the two: it is covered by the
 * ABI number and never stored. Big-endian, fields in the order of {@link #encode}.
 */
final class SegmentEncoder {
    private static final int MAX_TOPIC_BYTES = 0xffff;
    private static final int FIXED_BYTES =
        2 * 2 * Long.BYTES + Short.BYTES + 2 * Integer.BYTES + 5 * Long.BYTES + 1 + 2 * Integer.BYTES;

    private static final int EPOCH_BYTES = Integer.BYTES + Long.BYTES;
    private static final int NO_CUSTOM_METADATA = -1;

    /** Absent before Kafka 4.0, where the plugin must look at the file itself. */
    private static final MethodHandle TRANSACTION_INDEX_EMPTY = transactionIndexEmpty();

    private SegmentEncoder() {}

    private static MethodHandle transactionIndexEmpty() {
        try {
            return MethodHandles.publicLookup()
                .findVirtual(RemoteLogSegmentMetadata.class, "isTxnIdxEmpty", MethodType.methodType(boolean.class));
        } catch (ReflectiveOperationException absentInThisBroker) {
            return null;
        }
    }

    static byte[] encode(RemoteLogSegmentMetadata segment) throws Throwable {
        TopicIdPartition partition = segment.remoteLogSegmentId().topicIdPartition();
        byte[] topic = partition.topic().getBytes(StandardCharsets.UTF_8);
        if (topic.length > MAX_TOPIC_BYTES) {
            throw new IllegalArgumentException("the topic's name has " + topic.length + " bytes");
        }
        NavigableMap<Integer, Long> epochs = segment.segmentLeaderEpochs();
        CustomMetadata customMetadata = segment.customMetadata().orElse(null);
        byte[] custom = customMetadata == null ? null : customMetadata.value();
        ByteBuffer encoded = ByteBuffer.allocate(FIXED_BYTES
            + topic.length
            + epochs.size() * EPOCH_BYTES
            + (custom == null ? 0 : custom.length));
        put(encoded, partition.topicId());
        encoded.putShort((short) topic.length).put(topic);
        encoded.putInt(partition.partition());
        put(encoded, segment.remoteLogSegmentId().id());
        encoded.putLong(segment.startOffset());
        encoded.putLong(segment.endOffset());
        encoded.putLong(segment.maxTimestampMs());
        encoded.putInt(segment.brokerId());
        encoded.putLong(segment.eventTimestampMs());
        encoded.putLong(segment.segmentSizeInBytes());
        encoded.put((byte) (isTransactionIndexEmpty(segment) ? 1 : 0));
        encoded.putInt(epochs.size());
        for (Map.Entry<Integer, Long> epoch : epochs.entrySet()) {
            encoded.putInt(epoch.getKey()).putLong(epoch.getValue());
        }
        encoded.putInt(custom == null ? NO_CUSTOM_METADATA : custom.length);
        if (custom != null) {
            encoded.put(custom);
        }
        return encoded.array();
    }

    private static void put(ByteBuffer encoded, Uuid id) {
        encoded.putLong(id.getMostSignificantBits()).putLong(id.getLeastSignificantBits());
    }

    private static boolean isTransactionIndexEmpty(RemoteLogSegmentMetadata segment) throws Throwable {
        return TRANSACTION_INDEX_EMPTY != null && (boolean) TRANSACTION_INDEX_EMPTY.invokeExact(segment);
    }
}

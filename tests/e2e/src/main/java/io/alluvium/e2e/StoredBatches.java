package io.alluvium.e2e;

import java.io.DataInputStream;
import java.io.IOException;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** Record batches (magic 2) in the `.log` objects of a topic, read from their headers as the store has them. */
final class StoredBatches {
    /** Kafka's compression types: 1 to 4 in the attributes of a batch, and `none`, which is 0. */
    static final List<String> CODECS = List.of("gzip", "snappy", "lz4", "zstd", "none");

    /** From the length on: leader epoch, magic, checksum. */
    private static final int BYTES_BEFORE_ATTRIBUTES = 4 + 1 + 4;
    private static final int CODEC_BITS = 7;

    private StoredBatches() {
    }

    /** The compression types of all batches of a topic's first partition. */
    static Set<String> codecs(BucketView view, Topic topic) throws IOException {
        Set<String> codecs = new TreeSet<>();
        for (String key : view.list().keySet()) {
            if (topic.owns(key) && key.endsWith(".log")) {
                try (DataInputStream log = new DataInputStream(view.open(key))) {
                    addCodecs(log, codecs);
                }
            }
        }
        return codecs;
    }

    private static void addCodecs(DataInputStream log, Set<String> codecs) throws IOException {
        while (log.read() >= 0) {
            log.skipNBytes(Long.BYTES - 1);
            int length = log.readInt();
            log.skipNBytes(BYTES_BEFORE_ATTRIBUTES);
            int codec = log.readShort() & CODEC_BITS;
            if (codec >= CODECS.size()) {
                throw new IOException("not the attributes of a batch: codec " + codec);
            }
            codecs.add(CODECS.get((codec + CODECS.size() - 1) % CODECS.size()));
            log.skipNBytes(length - BYTES_BEFORE_ATTRIBUTES - Short.BYTES);
        }
    }
}

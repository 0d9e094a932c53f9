package io.alluvium.bench;

import io.alluvium.harness.HarnessException;
import java.util.Locale;
import org.apache.kafka.common.compress.Compression;

/** What the producers compressed the batches of a segment with. */
enum Content {
    NONE(Compression.NONE),
    LZ4(Compression.lz4().build()),
    ZSTD(Compression.zstd().build());

    private final Compression compression;

    Content(Compression compression) {
        this.compression = compression;
    }

    static Content named(String name) {
        try {
            return valueOf(name.toUpperCase(Locale.ROOT));
        } catch (IllegalArgumentException unknown) {
            throw new HarnessException("no such content: " + name + "; there are none, lz4, zstd");
        }
    }

    Compression compression() {
        return compression;
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}

package io.alluvium.harness;

import java.nio.charset.StandardCharsets;
import java.util.SplittableRandom;

/**
 * Records that look like application events in JSON, about 1 KB each. A record follows from the seed, the partition
 * and its index alone, so that a reader can make it again and compare every byte.
 *
 * <p>Timestamps rise with the index, a quarter of a second a record, so that seeking by time has one right answer.
 */
public final class RecordGenerator {
    private static final long FIRST_TIMESTAMP_MILLIS = 1_750_000_000_000L;
    private static final long STEP_MILLIS = 250;
    private static final int VALUE_BYTES = 1000;
    private static final String[] EVENTS = {"login", "search", "view", "add_to_cart", "checkout", "payment", "refund"};
    private static final String[] WORDS = {
        "river", "delta", "silt", "gravel", "meadow", "channel", "flood", "terrace", "basin", "sediment", "current",
        "bank", "estuary", "spring", "confluence", "meander", "levee", "sandbar", "tributary", "watershed",
    };

    private final long seed;

    public RecordGenerator(long seed) {
        this.seed = seed;
    }

    /** Another seed each time, unless the system property alluvium.e2e.seed repeats one. */
    public static RecordGenerator withRandomSeed() {
        return new RecordGenerator(Long.getLong("alluvium.e2e.seed", new SplittableRandom().nextInt(1_000_000)));
    }

    public long seed() {
        return seed;
    }

    public byte[] key(int partition, long index) {
        return ("user-" + Long.toUnsignedString(random(partition, index).nextLong() >>> 40, 36) + "-" + index)
                .getBytes(StandardCharsets.US_ASCII);
    }

    public long timestamp(long index) {
        return FIRST_TIMESTAMP_MILLIS + index * STEP_MILLIS;
    }

    public byte[] value(int partition, long index) {
        SplittableRandom random = random(partition, index);
        StringBuilder json = new StringBuilder(VALUE_BYTES + 64);
        json.append("{\"partition\":").append(partition)
                .append(",\"index\":").append(index)
                .append(",\"time\":").append(timestamp(index))
                .append(",\"trace\":\"").append(Long.toHexString(random.nextLong())).append(Long.toHexString(random.nextLong()))
                .append("\",\"event\":\"").append(EVENTS[random.nextInt(EVENTS.length)])
                .append("\",\"amount\":").append(random.nextInt(1_000_000) / 100.0)
                .append(",\"note\":\"");
        while (json.length() < VALUE_BYTES) {
            json.append(WORDS[random.nextInt(WORDS.length)]).append(' ');
        }
        json.append("\"}");
        return json.toString().getBytes(StandardCharsets.US_ASCII);
    }

    private SplittableRandom random(int partition, long index) {
        return new SplittableRandom(seed * 0x9E3779B97F4A7C15L + partition * 0xC2B2AE3D27D4EB4FL + index);
    }
}

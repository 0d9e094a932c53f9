package io.alluvium.e2e;

import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/** A checksum over offset, timestamp, key and value of the records of one partition, in their order. */
final class RecordDigest {
    private final CRC32C checksum = new CRC32C();
    private final ByteBuffer numbers = ByteBuffer.allocate(2 * Long.BYTES + 2 * Integer.BYTES);
    private long records;
    private long bytes;

    void add(long offset, long timestamp, byte[] key, byte[] value) {
        // The lengths are part of it, else a byte that moved from the key to the value would go unseen.
        numbers.clear();
        numbers.putLong(offset).putLong(timestamp).putInt(key.length).putInt(value.length).flip();
        checksum.update(numbers);
        checksum.update(key);
        checksum.update(value);
        records++;
        bytes += key.length + value.length;
    }

    long value() {
        return checksum.getValue();
    }

    long records() {
        return records;
    }

    long bytes() {
        return bytes;
    }

    boolean sameAs(RecordDigest other) {
        return records == other.records && bytes == other.bytes && value() == other.value();
    }

    @Override
    public String toString() {
        return String.format("%08x over %,d records", value(), records);
    }
}

package io.alluvium.kafka;

import java.io.EOFException;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.Map;

/**
 * Looks at a library before the dynamic loader does. The loader maps what the file's table promises; if the file is cut
 * short, touching the rest is a bus error that no exception handler sees and that ends the broker.
 */
final class ElfFile {
    private static final int MAGIC = 0x7f454c46;
    private static final int CLASS_64 = 2;
    private static final int LITTLE_ENDIAN = 1;
    private static final int HEADER_BYTES = 64;
    private static final int TABLE_ENTRY_BYTES = 56;
    private static final int TYPE_LOAD = 1;
    private static final Map<Integer, String> MACHINES = Map.of(62, "x86_64", 183, "aarch64");

    private ElfFile() {}

    /** What is wrong with the file for a machine of this architecture, or null. */
    static String complaint(Path file, String architecture) throws IOException {
        // Not a channel: an interrupt would close it.
        try (RandomAccessFile library = new RandomAccessFile(file.toFile(), "r")) {
            ByteBuffer header = read(library, 0, HEADER_BYTES);
            if (header == null || header.getInt(0) != MAGIC) {
                return "it is not a library";
            }
            if (header.get(4) != CLASS_64 || header.get(5) != LITTLE_ENDIAN) {
                return "it is built for another kind of machine than " + architecture;
            }
            header.order(ByteOrder.LITTLE_ENDIAN);
            String machine = MACHINES.getOrDefault((int) header.getShort(18), "another architecture");
            if (!machine.equals(architecture)) {
                return "it is built for " + machine + ", this machine is " + architecture;
            }
            return isWhole(library, header) ? null : "it is cut short: install it again, and see that the disk has room";
        }
    }

    private static boolean isWhole(RandomAccessFile library, ByteBuffer header) throws IOException {
        long table = header.getLong(32);
        int entryBytes = Short.toUnsignedInt(header.getShort(54));
        int entries = Short.toUnsignedInt(header.getShort(56));
        if (entryBytes < TABLE_ENTRY_BYTES) {
            return false;
        }
        long size = library.length();
        for (int entry = 0; entry < entries; entry++) {
            ByteBuffer segment = read(library, table + (long) entry * entryBytes, TABLE_ENTRY_BYTES);
            if (segment == null) {
                return false;
            }
            segment.order(ByteOrder.LITTLE_ENDIAN);
            long offset = segment.getLong(8);
            long length = segment.getLong(32);
            if (segment.getInt(0) == TYPE_LOAD && (offset < 0 || length < 0 || offset > size || length > size - offset)) {
                return false;
            }
        }
        return true;
    }

    /** Null if the file ends before that. */
    private static ByteBuffer read(RandomAccessFile library, long position, int length) throws IOException {
        if (position < 0) {
            return null;
        }
        byte[] bytes = new byte[length];
        try {
            library.seek(position);
            library.readFully(bytes);
        } catch (EOFException cutShort) {
            return null;
        }
        return ByteBuffer.wrap(bytes);
    }
}

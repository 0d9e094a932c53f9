package io.alluvium.bench;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/** Java heap that each live thread allocated so far. Threads that end between two of these are not seen. */
final class ThreadAllocations {
    private static final ThreadMXBean THREADS = (ThreadMXBean) ManagementFactory.getThreadMXBean();

    private final Map<Long, Long> bytes = new HashMap<>();

    ThreadAllocations() {
        long[] ids = THREADS.getAllThreadIds();
        long[] allocated = THREADS.getThreadAllocatedBytes(ids);
        for (int index = 0; index < ids.length; index++) {
            bytes.put(ids[index], Math.max(0, allocated[index]));
        }
    }

    /** Bytes that threads other than these allocated since the earlier moment. */
    long since(ThreadAllocations earlier, Set<Long> except) {
        return bytes.entrySet().stream()
                .filter(entry -> !except.contains(entry.getKey()))
                .mapToLong(entry -> entry.getValue() - earlier.bytes.getOrDefault(entry.getKey(), 0L))
                .sum();
    }
}

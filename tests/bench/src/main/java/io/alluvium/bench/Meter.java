package io.alluvium.bench;

import io.alluvium.harness.HarnessException;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Runs the consumers of one case, each on a thread of its own, and takes the figures of the process around them.
 *
 * <p>Invariants: everything that the benchmark itself needs is made before the first figure is taken; the threads live
 * until the last one is. The time of comparing is subtracted, from the CPU time as it is, from the elapsed time divided
 * by the cores that it could run on.
 *
 * <p>Failure: the first failure of a consumer is thrown when all have ended.
 */
final class Meter {
    private final StoreLink store;

    Meter(StoreLink store) {
        this.store = store;
    }

    /** What a consumer does. */
    interface Work {
        void run(Reading reading) throws Exception;
    }

    /** A consumer: what it does, and where its figures go. */
    record Consumer(Reading reading, Work work) {
    }

    Row measure(String name, List<Consumer> consumers) {
        CountDownLatch start = new CountDownLatch(1);
        CountDownLatch done = new CountDownLatch(consumers.size());
        CountDownLatch end = new CountDownLatch(1);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Set<Long> own = new HashSet<>(Set.of(Thread.currentThread().getId()));
        for (Consumer consumer : consumers) {
            Thread thread = new Thread(() -> {
                try {
                    start.await();
                    consumer.work().run(consumer.reading());
                } catch (Throwable thrown) {
                    failure.compareAndSet(null, thrown);
                } finally {
                    done.countDown();
                }
                awaitUninterruptibly(end);
            }, "bench-consumer");
            thread.setDaemon(true);
            thread.start();
            own.add(thread.getId());
        }
        // Garbage of what came before is not this case's.
        System.gc();
        store.resetCounters();
        ProcessStatus.resetPeak();
        ThreadAllocations allocationsBefore = new ThreadAllocations();
        long cpuBefore = ProcessStatus.cpuNanos();
        long began = System.nanoTime();
        start.countDown();
        awaitUninterruptibly(done);
        long wall = System.nanoTime() - began;
        long cpu = ProcessStatus.cpuNanos() - cpuBefore;
        long others = new ThreadAllocations().since(allocationsBefore, own);
        long resident = ProcessStatus.residentBytes();
        long peak = ProcessStatus.peakResidentBytes();
        Map<String, Long> counters = store.counters();
        end.countDown();
        if (failure.get() instanceof Reading.WrongBytes wrong) {
            throw wrong;
        }
        if (failure.get() != null) {
            throw new HarnessException(name + ": " + failure.get(), failure.get());
        }
        List<Reading> readings = consumers.stream().map(Consumer::reading).toList();
        long comparing = readings.stream().mapToLong(Reading::comparingNanos).sum();
        int comparers = Math.min(consumers.size(), Runtime.getRuntime().availableProcessors());
        long callers = readings.stream().mapToLong(Reading::allocatedBytes).sum();
        return new Row(name, consumers.size(), wall - comparing / comparers, cpu - comparing, comparing, callers, callers + others,
                resident, peak, counters, new Latencies(readings),
                readings.stream().mapToLong(Reading::bytesRead).sum(),
                readings.stream().mapToLong(Reading::bytesDelivered).sum());
    }

    private static void awaitUninterruptibly(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted while measuring", interrupted);
        }
    }
}

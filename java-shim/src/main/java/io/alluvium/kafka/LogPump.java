package io.alluvium.kafka;

import java.util.HashMap;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Carries the library's log events into SLF4J, under loggers named after where they come from.
 *
 * <p>The library keeps events in a bounded queue and never calls Java; this thread fetches them. There is one for a copy
 * of the library, that is for a class loader, however many instances use it; it ends with the last of them.
 */
final class LogPump implements Runnable {
    private static final int BATCH = 256;
    private static final int WAIT_MS = 200;
    private static final long STOP_MS = 5_000;
    /** After an appender failed, so that a broken one costs no CPU. */
    private static final long PAUSE_MS = 1_000;

    private static final String OWN_PREFIX = "alluvium";

    // Guarded by the class.
    private static int users;
    private static LogPump running;
    private static Thread thread;

    private final Map<String, Logger> loggers = new HashMap<>();
    private volatile boolean stopping;

    private LogPump() {}

    static synchronized void acquire() {
        if (users == 0) {
            running = new LogPump();
            thread = new Thread(running, "alluvium-log");
            thread.setDaemon(true);
            thread.setContextClassLoader(LogPump.class.getClassLoader());
            thread.start();
        }
        users++;
    }

    /** The last one to leave waits until what was logged so far is written, and keeps its interrupt. */
    static synchronized void release() {
        users--;
        if (users > 0) {
            return;
        }
        running.stopping = true;
        boolean interrupted = false;
        long remaining = STOP_MS;
        while (thread.isAlive() && remaining > 0) {
            long since = System.nanoTime();
            try {
                thread.join(remaining);
            } catch (InterruptedException interrupt) {
                interrupted = true;
            }
            remaining -= Math.max(1, (System.nanoTime() - since) / 1_000_000);
        }
        running = null;
        thread = null;
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void run() {
        while (true) {
            // Read before the poll: what was queued before the stop is fetched by the poll after it.
            boolean last = stopping;
            try {
                String[] events = Native.pollLogs(BATCH, last ? 0 : WAIT_MS);
                for (int at = 0; at + Native.LOG_FIELDS <= events.length; at += Native.LOG_FIELDS) {
                    log(events[at], events[at + 1], events[at + 2]);
                }
                if (last && events.length == 0) {
                    return;
                }
            } catch (Throwable thrown) {
                if (last) {
                    return;
                }
                pause();
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException interrupt) {
            // Nobody has a reason to interrupt this thread; it ends when it is told to.
        }
    }

    private void log(String level, String target, String message) {
        Logger logger = loggers.computeIfAbsent(target, LogPump::logger);
        switch (level) {
            case "ERROR":
                logger.error(message);
                break;
            case "WARN":
                logger.warn(message);
                break;
            case "INFO":
                logger.info(message);
                break;
            case "DEBUG":
                logger.debug(message);
                break;
            default:
                logger.trace(message);
        }
    }

    private static Logger logger(String target) {
        return LoggerFactory.getLogger(loggerName(target));
    }

    /** {@code alluvium_engine::ops::copy} gives {@code io.alluvium.engine.ops.copy}; libraries come under io.alluvium.lib. */
    static String loggerName(String target) {
        String dotted = target.replace("::", ".");
        if (dotted.startsWith(OWN_PREFIX + "_")) {
            return "io.alluvium." + dotted.substring(OWN_PREFIX.length() + 1);
        }
        if (dotted.equals(OWN_PREFIX) || dotted.startsWith(OWN_PREFIX + ".")) {
            return "io." + dotted;
        }
        return "io.alluvium.lib." + dotted;
    }
}

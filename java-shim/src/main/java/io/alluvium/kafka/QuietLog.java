package io.alluvium.kafka;

import org.slf4j.Logger;

/** Log lines of this side. A broken appender costs the line, never the operation. */
final class QuietLog {
    private QuietLog() {}

    // No variable number of arguments: the array for them is made by the caller, where a full heap would be felt.

    static void info(Logger logger, String format, Object argument) {
        try {
            logger.info(format, argument);
        } catch (Throwable thrown) {
            // There is no other place to tell it.
        }
    }

    static void info(Logger logger, String format, Object first, Object second) {
        try {
            logger.info(format, first, second);
        } catch (Throwable thrown) {
            // There is no other place to tell it.
        }
    }

    static void warn(Logger logger, String what, Throwable cause) {
        try {
            logger.warn("alluvium: {}", what, cause);
        } catch (Throwable thrown) {
            // There is no other place to tell it.
        }
    }
}

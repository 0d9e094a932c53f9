package io.alluvium.e2e;

import io.alluvium.harness.ChildProcess;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** The broker's log file, read for what it must and must not say. */
final class BrokerLog {
    /** Level, thread, text, logger: what the filters here look for. */
    static final String PATTERN = "[%d] %p [%t] %m (%c)%n";

    /** Of one partition; and, before Kafka 4.2, of all of them. */
    private static final List<String> METADATA_NOT_READ_YET = List.of(
            "Remote log metadata cache is not initialized", "This instance is in invalid state, initialized: false close: false");

    private final Path file;

    BrokerLog(Path file) {
        this.file = file;
    }

    String text() {
        return ChildProcess.readText(file);
    }

    boolean contains(String text) {
        return text().contains(text);
    }

    /**
     * Lines at level ERROR or FATAL of the plugin, or of the part of Kafka that calls it; but not what Kafka says when it
     * comes to a partition before it has read its own metadata of remote segments again, which is its usual start.
     */
    List<String> tieringErrors() {
        List<String> lines = text().lines().toList();
        List<String> errors = new ArrayList<>();
        for (int index = 0; index < lines.size(); index++) {
            String line = lines.get(index);
            String cause = index + 1 < lines.size() ? lines.get(index + 1) : "";
            boolean error = line.contains("] ERROR [") || line.contains("] FATAL [");
            if (error && concernsTiering(line) && METADATA_NOT_READ_YET.stream().noneMatch(cause::contains)) {
                errors.add(line + " " + cause);
            }
        }
        return errors;
    }

    /** Lines that the plugin wrote, whatever their level. */
    List<String> pluginLines() {
        return text().lines().filter(line -> logger(line).contains("alluvium")).toList();
    }

    private static boolean concernsTiering(String line) {
        String logger = logger(line);
        return logger.contains("alluvium") || logger.contains("remote");
    }

    private static String logger(String line) {
        int open = line.lastIndexOf('(');
        return open < 0 || !line.endsWith(")") ? "" : line.substring(open).toLowerCase(Locale.ROOT);
    }
}

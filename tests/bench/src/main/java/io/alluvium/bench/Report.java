package io.alluvium.bench;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** Prints each row as it comes, in Markdown, and appends it to the file of JSON lines, if there is one. */
final class Report {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Options options;
    private Content content;
    private int rows;

    Report(Options options) {
        this.options = options;
    }

    int rows() {
        return rows;
    }

    void begin(Content next, List<LocalSegment> segments) {
        content = next;
        // Garbage of making the segments is not the plugin's.
        System.gc();
        StringBuilder sizes = new StringBuilder();
        segments.forEach(segment -> sizes.append(format(", %.1f MiB in %d batches", Row.mib(segment.sizeInBytes()), segment.batches())));
        System.out.printf("%n%s, %s; segments: %s%s; resident before the plugin: %.0f MiB%n%n", options.className, link(),
                content == Content.NONE ? "uncompressed" : content, sizes, Row.mib(ProcessStatus.residentBytes()));
        System.out.println("| case | MiB/s | CPU s/GiB | wall s | delivered, read MiB | ms p50 | p99 | max | p99 later"
                + " | heap MiB: callers, all | RSS, peak MiB | requests | MiB down, up |");
        System.out.println("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    }

    void add(Row row) {
        rows++;
        Latencies latencies = row.latencies();
        print(row.name(),
                row.isRated() ? format("%.0f", row.mibPerSecond()) : "",
                row.isRated() ? format("%.2f", row.cpuSecondsPerGib()) : format("(%.2f s)", row.cpuSeconds()),
                format("%.2f", row.wallSeconds()),
                format("%.0f, %.0f", row.deliveredMib(), Row.mib(row.bytesRead())),
                format("%.2f", latencies.medianMillis()), format("%.2f", latencies.p99Millis()),
                format("%.2f", latencies.maxMillis()), Double.isNaN(latencies.laterP99Millis()) ? "" : format("%.2f", latencies.laterP99Millis()),
                format("%.2f, %.2f", Row.mib(row.callersHeapBytes()), Row.mib(row.pluginHeapBytes())),
                format("%.0f, %.0f", Row.mib(row.residentBytes()), Row.mib(row.peakResidentBytes())),
                requests(row.counters()),
                row.counters().isEmpty() ? "" : format("%.1f, %.1f",
                        Row.mib(row.counters().get("body_bytes_down")), Row.mib(row.counters().get("body_bytes_up"))));
        ObjectNode line = line(row.name());
        line.put("consumers", row.consumers());
        line.put("wall_seconds", row.wallSeconds());
        line.put("cpu_seconds", row.cpuSeconds());
        line.put("comparing_seconds", row.comparingNanos() / 1e9);
        line.put("bytes_delivered", row.bytesDelivered());
        line.put("bytes_read", row.bytesRead());
        if (row.isRated()) {
            line.put("mib_per_second", row.mibPerSecond());
            line.put("cpu_seconds_per_gib", row.cpuSecondsPerGib());
        }
        line.put("latencies", latencies.count());
        line.put("latency_p50_ms", latencies.medianMillis());
        line.put("latency_p99_ms", latencies.p99Millis());
        line.put("latency_max_ms", latencies.maxMillis());
        if (!Double.isNaN(latencies.laterP99Millis())) {
            line.put("latency_later_p99_ms", latencies.laterP99Millis());
        }
        line.put("heap_callers_bytes", row.callersHeapBytes());
        line.put("heap_all_bytes", row.pluginHeapBytes());
        line.put("rss_bytes", row.residentBytes());
        line.put("rss_peak_bytes", row.peakResidentBytes());
        ObjectNode counters = line.putObject("counters");
        row.counters().forEach(counters::put);
        append(line);
    }

    void add(RawLimit limit) {
        rows++;
        print("raw limit: GETs of 16 MiB, 8 at a time", format("%.0f", limit.mibPerSecond()), format("%.2f", limit.cpuSecondsPerGib()),
                format("%.2f", limit.wallSeconds()), format("%.0f, %.0f", Row.mib(limit.bytes()), Row.mib(limit.bytes())),
                "", "", "", "", "", "", "", "");
        ObjectNode line = line("raw limit");
        line.put("wall_seconds", limit.wallSeconds());
        line.put("cpu_seconds", limit.cpuSeconds());
        line.put("bytes_delivered", limit.bytes());
        line.put("mib_per_second", limit.mibPerSecond());
        line.put("cpu_seconds_per_gib", limit.cpuSecondsPerGib());
        append(line);
    }

    private ObjectNode line(String name) {
        ObjectNode line = JSON.createObjectNode();
        line.put("class", options.className);
        line.put("link", link());
        line.put("content", content.toString());
        line.put("case", name);
        return line;
    }

    private String link() {
        if (!options.isProxied()) {
            return "direct";
        }
        String width = options.bytesPerSecond == null ? "" : format(", %.0f MiB/s a connection", Row.mib(options.bytesPerSecond));
        return options.latencyMillis + " ms" + width;
    }

    /** Only what happened: the operations with their counts. */
    private static String requests(Map<String, Long> counters) {
        List<String> texts = new ArrayList<>();
        counters.forEach((name, count) -> {
            if (count > 0 && Character.isUpperCase(name.charAt(0))) {
                texts.add(count + " " + name);
            }
        });
        return String.join(", ", texts);
    }

    private static void print(String... cells) {
        System.out.println("| " + String.join(" | ", cells) + " |");
        System.out.flush();
    }

    private static String format(String pattern, Object... values) {
        return String.format(Locale.ROOT, pattern, values);
    }

    private void append(ObjectNode line) {
        if (options.json == null) {
            return;
        }
        try {
            Files.writeString(options.json, line + "\n", StandardCharsets.UTF_8, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}

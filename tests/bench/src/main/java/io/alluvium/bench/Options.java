package io.alluvium.bench;

import io.alluvium.harness.HarnessException;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Stream;

/** What the command line asks for; tests/bench/README.md describes each option. */
final class Options {
    static final String USAGE = String.join("\n",
            "usage: bench --class CLASS --class-path PATH [--settings FILE] [--set KEY=VALUE]... [OPTION]...",
            "  --contents LIST          none, lz4, zstd: what producers compressed the batches with (none)",
            "  --cases LIST             " + String.join(", ", Cases.NAMES) + " (all)",
            "  --segment-mib N          size of a segment (256)",
            "  --seed N                 of the records and of the random positions (1)",
            "  --open-at index|batch    where a fetch begins: where Kafka's offset index says, or at the batch wanted (index)",
            "  --warm-mib N             what the second consumer reads again, from the end (64)",
            "  --settle-seconds N       pause between the copies and the reads (10)",
            "  --latency-ms N           put the proxy before the store, and add so much to each round trip",
            "  --bytes-per-second N     put the proxy before the store, and limit each connection",
            "  --total-bytes-per-second N  put the proxy before the store, and limit all connections together",
            "  --json FILE              append each row as a line of JSON");

    /** Where a broker-like fetch begins. */
    enum OpenAt { INDEX, BATCH }

    final String className;
    final String classPath;
    final Map<String, String> settings = new TreeMap<>();
    final List<Content> contents;
    final List<String> cases;
    final int segmentBytes;
    final long seed;
    final OpenAt openAt;
    final int warmBytes;
    final int settleSeconds;
    /** Of the proxy; null when there is to be none. */
    final Integer latencyMillis;
    final Long bytesPerSecond;
    final Long totalBytesPerSecond;
    final Path json;

    private Options(Map<String, String> given, List<String> set) {
        className = required(given, "class");
        classPath = required(given, "class-path");
        if (given.containsKey("settings")) {
            readSettings(Path.of(given.get("settings")));
        }
        for (String pair : set) {
            int equals = pair.indexOf('=');
            if (equals < 1) {
                throw new HarnessException("--set " + pair + " is not KEY=VALUE");
            }
            settings.put(pair.substring(0, equals), pair.substring(equals + 1));
        }
        contents = list(given.getOrDefault("contents", "none")).stream().map(Content::named).toList();
        cases = list(given.getOrDefault("cases", String.join(",", Cases.NAMES)));
        cases.stream().filter(name -> !Cases.NAMES.contains(name)).findFirst().ifPresent(name -> {
            throw new HarnessException("no such case: " + name + "; there are " + String.join(", ", Cases.NAMES));
        });
        segmentBytes = (int) number(given, "segment-mib", 256, 4, 2047) << 20;
        seed = number(given, "seed", 1, Long.MIN_VALUE, Long.MAX_VALUE);
        openAt = switch (given.getOrDefault("open-at", "index")) {
            case "index" -> OpenAt.INDEX;
            case "batch" -> OpenAt.BATCH;
            default -> throw new HarnessException("--open-at is index or batch");
        };
        warmBytes = (int) number(given, "warm-mib", 64, 1, 2047) << 20;
        settleSeconds = (int) number(given, "settle-seconds", 10, 0, 600);
        boolean proxied = Stream.of("latency-ms", "bytes-per-second", "total-bytes-per-second").anyMatch(given::containsKey);
        latencyMillis = proxied ? (int) number(given, "latency-ms", 0, 0, 60_000) : null;
        bytesPerSecond = rate(given, "bytes-per-second");
        totalBytesPerSecond = rate(given, "total-bytes-per-second");
        json = given.containsKey("json") ? Path.of(given.get("json")) : null;
    }

    private static Long rate(Map<String, String> given, String name) {
        return given.containsKey(name) ? Long.valueOf(number(given, name, 0, 1, Long.MAX_VALUE)) : null;
    }

    static Options parse(String[] arguments) {
        List<String> known = List.of("class", "class-path", "settings", "contents", "cases", "segment-mib", "seed", "open-at",
                "warm-mib", "settle-seconds", "latency-ms", "bytes-per-second", "total-bytes-per-second", "json");
        Map<String, String> given = new TreeMap<>();
        List<String> set = new ArrayList<>();
        for (int index = 0; index < arguments.length; index += 2) {
            String name = arguments[index].startsWith("--") ? arguments[index].substring(2) : "";
            if (index + 1 == arguments.length || !(name.equals("set") || known.contains(name))) {
                throw new HarnessException("not understood: " + arguments[index] + "\n" + USAGE);
            }
            if (name.equals("set")) {
                set.add(arguments[index + 1]);
            } else {
                given.put(name, arguments[index + 1]);
            }
        }
        return new Options(given, set);
    }

    boolean isProxied() {
        return latencyMillis != null;
    }

    private void readSettings(Path file) {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(file)) {
            properties.load(reader);
        } catch (IOException failure) {
            throw new UncheckedIOException("the settings cannot be read", failure);
        }
        properties.stringPropertyNames().forEach(name -> settings.put(name, properties.getProperty(name)));
    }

    private static List<String> list(String text) {
        return List.of(text.split(","));
    }

    private static String required(Map<String, String> given, String name) {
        if (!given.containsKey(name)) {
            throw new HarnessException("--" + name + " is missing\n" + USAGE);
        }
        return given.get(name);
    }

    private static long number(Map<String, String> given, String name, long otherwise, long least, long most) {
        String text = given.getOrDefault(name, String.valueOf(otherwise));
        try {
            long number = Long.parseLong(text);
            if (number >= least && number <= most) {
                return number;
            }
        } catch (NumberFormatException notOne) {
            // Told below, with what would be one.
        }
        throw new HarnessException("--" + name + " " + text + " is not a number from " + least + " to " + most);
    }
}

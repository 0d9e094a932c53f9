package io.alluvium.e2e;

import io.alluvium.harness.ChildProcess;
import io.alluvium.harness.HarnessException;
import io.alluvium.harness.Project;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** Kafka's own tool for looking into a segment file. */
final class DumpLog {
    private static final Duration LIMIT = Duration.ofSeconds(60);
    private static final List<String> CLASSES =
            List.of("org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments");

    private DumpLog() {
    }

    /** Whether kafka-dump-log finds a whole, valid segment in the file, which must be named by its base offset. */
    static boolean reads(Path segment, Path outputDirectory) {
        Path output = outputDirectory.resolve("dump-log.out");
        ChildProcess dump = ChildProcess.start("kafka-dump-log",
                List.of(Project.java(), "-cp", Project.kafkaLibs() + "/*", mainClass(),
                        "--files", segment.toString()),
                Map.of(), output);
        Integer status = dump.awaitExit(LIMIT);
        if (status == null) {
            dump.kill();
            return false;
        }
        List<String> batches = dump.output().lines().filter(line -> line.startsWith("baseOffset: ")).toList();
        long baseOffset = Long.parseLong(segment.getFileName().toString().replace(".log", ""));
        boolean valid = status == 0 && !batches.isEmpty()
                && batches.stream().allMatch(line -> line.contains("isvalid: true"))
                && batches.get(0).startsWith("baseOffset: " + baseOffset + " ");
        if (!valid) {
            System.out.println(ChildProcess.tail(dump.output(), 10));
        }
        return valid;
    }

    /** The tool moved to another package in the course of the versions. */
    private static String mainClass() {
        for (String name : CLASSES) {
            try {
                return Class.forName(name, false, DumpLog.class.getClassLoader()).getName();
            } catch (ClassNotFoundException notThisVersion) {
                // The next name may be this version's.
            }
        }
        throw new HarnessException("this Kafka has none of " + CLASSES);
    }
}

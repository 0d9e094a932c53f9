package io.alluvium.harness;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.stream.Stream;

/** Where the parts under test are: the tree's build products and the Kafka distribution. */
public final class Project {
    private static final Path ROOT =
            Path.of(System.getProperty("alluvium.root", ".")).toAbsolutePath().normalize();

    private Project() {
    }

    public static Path root() {
        return ROOT;
    }

    /** The jars of the Kafka broker to run. */
    public static Path kafkaLibs() {
        String libs = System.getProperty("alluvium.kafka.libs");
        if (libs == null) {
            throw new HarnessException("the system property alluvium.kafka.libs must name a directory of Kafka jars");
        }
        return Path.of(libs);
    }

    /** The version of that broker, told by the name of its jar. */
    public static String kafkaVersion() {
        String start = "kafka_2.13-";
        try (Stream<Path> jars = Files.list(kafkaLibs())) {
            return jars.map(jar -> jar.getFileName().toString())
                    .filter(name -> name.startsWith(start) && name.endsWith(".jar"))
                    .map(name -> name.substring(start.length(), name.length() - ".jar".length()))
                    .findFirst()
                    .orElseThrow(() -> new HarnessException("no " + start + "*.jar in " + kafkaLibs()));
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** The class path of the plugin as an operator would write it: every jar of its directory. */
    public static String pluginClassPath() {
        Path directory = ROOT.resolve("build/plugin");
        if (!Files.isDirectory(directory)) {
            throw new HarnessException(directory + " is missing: run gradle/run pluginDir");
        }
        return directory.resolve("*").toString();
    }

    /** The JVM that runs the harness also runs the brokers. */
    public static String java() {
        return Path.of(System.getProperty("java.home"), "bin", "java").toString();
    }
}

package io.alluvium.e2e;

import io.alluvium.harness.Await;
import io.alluvium.harness.ChildProcess;
import io.alluvium.harness.HarnessException;
import io.alluvium.harness.Project;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;

/**
 * A real Kafka broker (KRaft, broker and controller in one process) as a child process, with the plugin loaded as an
 * operator would load it.
 *
 * <p>Flow: the constructor writes the configuration and formats the storage; {@link #start} runs the broker and waits
 * until it serves; {@link #stop} or {@link #kill} end it; it can be started again on the same data.
 *
 * <p>Failure: a broker that found one of its ports taken is started again on others. Any other early end is reported
 * with the end of its log.
 */
final class KafkaBroker implements AutoCloseable {
    private static final int ATTEMPTS = 3;
    private static final int NODE_ID = 1;
    private static final Duration FORMAT_LIMIT = Duration.ofSeconds(60);
    private static final Duration START_LIMIT = Duration.ofSeconds(90);
    private static final Duration STOP_LIMIT = Duration.ofSeconds(60);
    private static final String PLUGIN_CLASS = "io.alluvium.kafka.AlluviumRemoteStorageManager";
    private static final String READY_TEXT = "Kafka Server started";

    private final Path directory;
    private final Map<String, String> pluginSettings;
    private final BrokerLog log;
    private final Path properties;
    private ChildProcess process;
    private int runs;
    private int listenerPort;
    private int jmxPort;

    /** Prepares a broker with its data in the directory. */
    KafkaBroker(Path directory, Map<String, String> pluginSettings) {
        this.directory = directory;
        this.pluginSettings = pluginSettings;
        this.log = new BrokerLog(directory.resolve("broker.log"));
        this.properties = directory.resolve("server.properties");
        write(directory.resolve("log4j2.properties"), loggingConfiguration());
        writeProperties();
        format();
    }

    /** Runs the broker and waits until it serves. */
    KafkaBroker start() {
        for (int attempt = 1;; attempt++) {
            launch();
            boolean ready = Await.holds(START_LIMIT, () -> startedRuns() >= runs || !process.isAlive());
            if (ready && process.isAlive()) {
                return this;
            }
            boolean portTaken = log.contains("Address already in use") || process.output().contains("Port already in use");
            if (attempt == ATTEMPTS || !portTaken) {
                process.kill();
                throw new HarnessException("the broker did not start:\n" + failureText());
            }
            process.kill();
            runs--;
            writeProperties();
        }
    }

    /** Runs a broker that should refuse its configuration: its exit status, or null when it still runs at the limit. */
    Integer startExpectingExit(Duration limit) {
        launch();
        return process.awaitExit(limit);
    }

    /** SIGTERM; true when the broker ended in order within the limit. */
    boolean stop() {
        return process.terminate(STOP_LIMIT);
    }

    /** SIGKILL, as a power cut would. */
    void kill() {
        process.kill();
    }

    @Override
    public void close() {
        if (process != null && process.isAlive()) {
            stop();
        }
    }

    boolean isAlive() {
        return process.isAlive();
    }

    String bootstrapServers() {
        return "127.0.0.1:" + listenerPort;
    }

    int jmxPort() {
        return jmxPort;
    }

    BrokerLog log() {
        return log;
    }

    /** Everything the broker wrote: its log, and what came out on the console. */
    String everythingWritten() {
        return log.text() + "\n" + process.output();
    }

    /** The directory with the broker's local segments of a partition. */
    Path partitionDirectory(String topic, int partition) {
        return directory.resolve("logs").resolve(topic + "-" + partition);
    }

    private void launch() {
        runs++;
        List<String> command = new ArrayList<>(List.of(Project.java(),
                "-Xms512m", "-Xmx512m", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true",
                "-Dlog4j2.configurationFile=" + directory.resolve("log4j2.properties"),
                "-Djava.io.tmpdir=" + temporaryDirectory(),
                "-Djava.rmi.server.hostname=127.0.0.1",
                "-Dcom.sun.management.jmxremote.host=127.0.0.1",
                "-Dcom.sun.management.jmxremote.port=" + jmxPort,
                "-Dcom.sun.management.jmxremote.rmi.port=" + jmxPort,
                "-Dcom.sun.management.jmxremote.authenticate=false",
                "-Dcom.sun.management.jmxremote.ssl=false"));
        command.addAll(List.of("-cp", Project.kafkaLibs() + "/*", "kafka.Kafka", properties.toString()));
        process = ChildProcess.start("the Kafka broker", command, Map.of(), directory.resolve("broker-" + runs + ".out"));
    }

    private long startedRuns() {
        return log.text().lines().filter(line -> line.contains(READY_TEXT)).count();
    }

    private String failureText() {
        return ChildProcess.tail(log.text(), 30) + "\n" + ChildProcess.tail(process.output(), 20);
    }

    private void format() {
        String clusterId = Uuid.randomUuid().toString();
        Path output = directory.resolve("format.out");
        ChildProcess format = ChildProcess.start("kafka-storage format",
                List.of(Project.java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", Project.kafkaLibs() + "/*",
                        "kafka.tools.StorageTool", "format", "-t", clusterId, "-c", properties.toString()),
                Map.of(), output);
        Integer status = format.awaitExit(FORMAT_LIMIT);
        if (status == null || status != 0) {
            if (status == null) {
                format.kill();
            }
            throw new HarnessException("the broker's storage could not be formatted:\n" + format.output());
        }
    }

    private Path temporaryDirectory() {
        try {
            return Files.createDirectories(directory.resolve("tmp"));
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private void writeProperties() {
        List<Integer> ports = FreePort.several(3);
        listenerPort = ports.get(0);
        int controllerPort = ports.get(1);
        jmxPort = ports.get(2);
        Map<String, String> settings = new LinkedHashMap<>();
        settings.put("process.roles", "broker,controller");
        settings.put("node.id", String.valueOf(NODE_ID));
        settings.put("controller.quorum.voters", NODE_ID + "@127.0.0.1:" + controllerPort);
        settings.put("listeners", "PLAINTEXT://127.0.0.1:" + listenerPort + ",CONTROLLER://127.0.0.1:" + controllerPort);
        settings.put("advertised.listeners", "PLAINTEXT://127.0.0.1:" + listenerPort);
        settings.put("inter.broker.listener.name", "PLAINTEXT");
        settings.put("controller.listener.names", "CONTROLLER");
        settings.put("log.dirs", directory.resolve("logs").toString());
        settings.put("offsets.topic.replication.factor", "1");
        settings.put("offsets.topic.num.partitions", "1");
        settings.put("transaction.state.log.replication.factor", "1");
        settings.put("transaction.state.log.num.partitions", "1");
        settings.put("transaction.state.log.min.isr", "1");
        settings.put("group.initial.rebalance.delay.ms", "0");
        // After a kill the new process must wait until the old one's session ends.
        settings.put("broker.heartbeat.interval.ms", "500");
        settings.put("broker.session.timeout.ms", "3000");
        // Kafka's periods of minutes, cut down so that a test sees in seconds what a cluster does in an hour.
        settings.put("log.retention.check.interval.ms", "500");
        settings.put("log.initial.task.delay.ms", "500");
        settings.put("remote.log.manager.task.interval.ms", "500");
        settings.put("remote.log.storage.system.enable", "true");
        settings.put("remote.log.storage.manager.class.name", PLUGIN_CLASS);
        settings.put("remote.log.storage.manager.class.path", Project.pluginClassPath());
        settings.put("remote.log.metadata.manager.listener.name", "PLAINTEXT");
        settings.put("rlmm.config.remote.log.metadata.topic.replication.factor", "1");
        settings.put("rlmm.config.remote.log.metadata.topic.num.partitions", "1");
        settings.put("rlmm.config.remote.log.metadata.topic.min.isr", "1");
        pluginSettings.forEach((key, value) -> settings.put("rsm.config." + key, value));
        StringBuilder text = new StringBuilder();
        settings.forEach((key, value) -> text.append(key).append('=').append(value.replace("\\", "\\\\")).append('\n'));
        write(properties, text.toString());
    }

    private String loggingConfiguration() {
        return String.join("\n",
                "status = warn",
                "appender.file.type = File",
                "appender.file.name = FILE",
                "appender.file.fileName = " + directory.resolve("broker.log"),
                "appender.file.layout.type = PatternLayout",
                "appender.file.layout.pattern = " + BrokerLog.PATTERN,
                "rootLogger.level = info",
                "rootLogger.appenderRef.file.ref = FILE",
                "logger.alluvium.name = io.alluvium",
                "logger.alluvium.level = debug",
                "");
    }

    private static void write(Path file, String text) {
        try {
            Files.createDirectories(file.getParent());
            Files.writeString(file, text);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}

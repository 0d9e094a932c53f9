package io.alluvium.harness;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * One process that the harness started, its output in a file.
 *
 * <p>Invariants: only processes started here are ever ended, each through its own handle; none outlives this JVM's
 * orderly end, since a shutdown hook kills what still runs.
 */
public final class ChildProcess {
    private static final Set<Process> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(ChildProcess::killAll, "alluvium-harness-kill"));
    }

    private final String name;
    private final Process process;
    private final Path output;

    private ChildProcess(String name, Process process, Path output) {
        this.name = name;
        this.process = process;
        this.output = output;
    }

    /** Starts a command with additional environment variables; standard output and error go to the file. */
    public static ChildProcess start(String name, List<String> command, Map<String, String> environment, Path output) {
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().putAll(environment);
        builder.redirectErrorStream(true).redirectOutput(output.toFile());
        try {
            Process process = builder.start();
            RUNNING.add(process);
            process.onExit().thenAccept(RUNNING::remove);
            return new ChildProcess(name, process, output);
        } catch (IOException failure) {
            throw new HarnessException("could not start " + name + " (" + command.get(0) + ")", failure);
        }
    }

    /** Kills what still runs and waits a little for the ends; for the end of this JVM. */
    public static void killAll() {
        RUNNING.forEach(Process::destroyForcibly);
        for (Process process : RUNNING) {
            try {
                process.waitFor(5, TimeUnit.SECONDS);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                return;
            }
        }
    }

    public boolean isAlive() {
        return process.isAlive();
    }

    public long pid() {
        return process.pid();
    }

    /** What the process wrote until now. */
    public String output() {
        return readText(output);
    }

    /** The exit status, once the process ended within the limit; else null. */
    public Integer awaitExit(Duration limit) {
        try {
            return process.waitFor(limit.toMillis(), TimeUnit.MILLISECONDS) ? process.exitValue() : null;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted while waiting for the end of " + name, interrupted);
        }
    }

    /** SIGTERM, then after the limit SIGKILL. True when the process ended by itself within the limit. */
    public boolean terminate(Duration limit) {
        process.destroy();
        if (awaitExit(limit) != null) {
            return true;
        }
        kill();
        return false;
    }

    /** SIGKILL, and the wait for the end. */
    public void kill() {
        process.destroyForcibly();
        if (awaitExit(Duration.ofSeconds(10)) == null) {
            throw new HarnessException(name + " (pid " + pid() + ") survives SIGKILL");
        }
    }

    /** The content of a text file that may not exist yet, or hold half a character at its end. */
    public static String readText(Path file) {
        try {
            return Files.exists(file) ? new String(Files.readAllBytes(file), StandardCharsets.UTF_8) : "";
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** The last lines of a text, to be shown with a failure. */
    public static String tail(String text, int lines) {
        List<String> all = text.lines().toList();
        return String.join("\n", all.subList(Math.max(0, all.size() - lines), all.size()));
    }
}

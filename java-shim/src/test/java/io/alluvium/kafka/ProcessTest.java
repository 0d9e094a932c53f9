package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The library is a guest in the broker's process. Each test looks at a virtual machine of its own. */
final class ProcessTest {
    @TempDir
    Path folder;

    private List<String> run(String how) throws IOException, InterruptedException {
        return run(ProcessTest.class, folder, folder.resolve("log").toString(), how);
    }

    /** What a program of the tests' class path prints; it is given {@code how} and the folder. */
    static List<String> run(Class<?> program, Path folder, String logFile, String how)
        throws IOException, InterruptedException {
        Path output = folder.resolve("output");
        Process process = new ProcessBuilder(
            System.getProperty("java.home") + "/bin/java", "-Xmx32m", "-XX:+UseSerialGC",
            "-Dalluvium.test.plugin.jar=" + Plugin.JAR,
            "-Dorg.slf4j.simpleLogger.logFile=" + logFile,
            "-cp", System.getProperty("java.class.path"), program.getName(), how, folder.toString())
            .redirectErrorStream(true)
            .redirectOutput(output.toFile())
            .start();
        boolean ended = process.waitFor(60, TimeUnit.SECONDS);
        process.destroyForcibly();
        List<String> lines = Files.readAllLines(output);
        assertTrue(ended, () -> "it does not end: " + lines);
        assertEquals(0, process.exitValue(), lines::toString);
        return lines;
    }

    @Test
    void signalHandlersAreLeftAlone() throws Exception {
        List<String> lines = run("close");
        assertEquals(2, lines.size(), lines::toString);
        assertTrue(lines.get(0).startsWith("SigCgt"), lines::toString);
        assertEquals(lines.get(0), lines.get(1));
    }

    @Test
    void aProcessEndsEvenIfNobodyCloses() throws Exception {
        run("forget");
    }

    /** Opens an instance, uses it, starts a process; says which signals are caught before and after. */
    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        System.out.println(caughtSignals());
        AlluviumRemoteStorageManager manager =
            Plugin.open(Plugin.onDirectory(Files.createDirectories(folder.resolve("root"))));
        TestSegment segment = TestSegment.of(folder.resolve("segment"), 1000);
        manager.copyLogSegmentData(segment.metadata, segment.data);
        segment.assertReadableFrom(manager);
        assertEquals(0, new ProcessBuilder("/bin/true").start().waitFor());
        System.out.println(caughtSignals());
        if (arguments[0].equals("close")) {
            manager.close();
        }
    }

    private static String caughtSignals() throws IOException {
        return Files.readAllLines(Path.of("/proc/self/status"), StandardCharsets.ISO_8859_1).stream()
            .filter(line -> line.startsWith("SigCgt"))
            .findFirst()
            .orElseThrow();
    }
}

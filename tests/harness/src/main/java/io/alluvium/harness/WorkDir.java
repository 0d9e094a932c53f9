package io.alluvium.harness;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.stream.Stream;

/**
 * The one temporary directory of a run: everything a run writes is inside. Removed at the end, unless the run failed
 * or KEEP=1 asks for it to stay; removed too when the run is broken off (Ctrl-C).
 */
public final class WorkDir {
    private final Path path;
    private volatile boolean finished;

    public WorkDir(String purpose) {
        String base = System.getenv("TMPDIR");
        Path parent = Path.of(base == null || base.isEmpty() ? System.getProperty("java.io.tmpdir") : base);
        try {
            path = Files.createTempDirectory(parent, "alluvium-" + purpose + "-").toRealPath();
        } catch (IOException failure) {
            throw new UncheckedIOException("no temporary directory can be made in " + parent, failure);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(this::removeIfBrokenOff, "alluvium-harness-remove"));
    }

    public Path path() {
        return path;
    }

    /** A new directory inside. */
    public Path directory(String name) {
        try {
            return Files.createDirectories(path.resolve(name));
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** Ends the run: removes everything, or says where it stays. */
    public void finish(boolean succeeded) {
        finished = true;
        if (holdsFiles() && (!succeeded || "1".equals(System.getenv("KEEP")))) {
            System.out.println("kept for a look: " + path);
            return;
        }
        removeTree(path);
    }

    private boolean holdsFiles() {
        try (Stream<Path> entries = Files.walk(path)) {
            return entries.anyMatch(Files::isRegularFile);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private void removeIfBrokenOff() {
        if (!finished && !"1".equals(System.getenv("KEEP"))) {
            // What still runs would go on writing here.
            ChildProcess.killAll();
            removeTree(path);
        }
    }

    private static void removeTree(Path root) {
        try {
            Files.walkFileTree(root, new SimpleFileVisitor<>() {
                @Override
                public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) throws IOException {
                    Files.deleteIfExists(file);
                    return FileVisitResult.CONTINUE;
                }

                @Override
                public FileVisitResult postVisitDirectory(Path directory, IOException failure) throws IOException {
                    Files.deleteIfExists(directory);
                    return FileVisitResult.CONTINUE;
                }
            });
        } catch (IOException failure) {
            System.out.println("could not remove " + root + ": " + failure);
        }
    }
}

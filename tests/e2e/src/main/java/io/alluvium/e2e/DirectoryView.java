package io.alluvium.e2e;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Map;
import java.util.TreeMap;

/** What a `file` store holds: the files under the prefix's directory, their paths as keys. */
final class DirectoryView implements BucketView {
    private final Path root;
    private final String prefix;

    DirectoryView(Path root, String prefix) {
        this.root = root;
        this.prefix = prefix;
    }

    @Override
    public Map<String, Long> list() {
        Map<String, Long> sizes = new TreeMap<>();
        if (!Files.isDirectory(root)) {
            return sizes;
        }
        try {
            Files.walkFileTree(root, new SimpleFileVisitor<>() {
                @Override
                public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) {
                    String key = root.relativize(file).toString();
                    if (key.startsWith(prefix)) {
                        sizes.put(key, attributes.size());
                    }
                    return FileVisitResult.CONTINUE;
                }

                // The store works while we look: what is gone when we come to it is simply not there.
                @Override
                public FileVisitResult visitFileFailed(Path file, IOException failure) {
                    return FileVisitResult.CONTINUE;
                }

                @Override
                public FileVisitResult postVisitDirectory(Path directory, IOException failure) {
                    return FileVisitResult.CONTINUE;
                }
            });
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        return sizes;
    }

    @Override
    public InputStream open(String key) {
        try {
            return Files.newInputStream(root.resolve(key));
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}

package io.alluvium.e2e;

import io.alluvium.harness.Await;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.stream.Collectors;

/**
 * Keeps the broker's own segment files of a topic from being lost: a thread gives each file a second name (a hard link)
 * as soon as it appears, while it is still being written, so that its bytes can be compared with what the bucket holds
 * after the broker deleted it.
 */
final class LocalSegments implements AutoCloseable {
    private static final long POLL_MILLIS = 50;
    private static final String SUFFIX = ".log";

    private final KafkaBroker broker;
    private final Topic topic;
    private final Path directory;
    private final Map<String, Path> kept = new ConcurrentSkipListMap<>();
    private final Thread keeper;
    private volatile boolean closed;

    LocalSegments(KafkaBroker broker, Topic topic, Path directory) {
        this.broker = broker;
        this.topic = topic;
        this.directory = directory;
        this.keeper = new Thread(this::keep, "alluvium-e2e-segment-keeper");
        keeper.setDaemon(true);
        keeper.start();
    }

    /** How many segments the broker still has on its disk, the active ones included. */
    int onDisk() {
        int count = 0;
        for (int partition = 0; partition < topic.partitions(); partition++) {
            count += segmentFiles(partition).size();
        }
        return count;
    }

    /** The kept files of all segments that were closed: all but the last of each partition. Keyed "partition/base offset". */
    Map<String, Path> rolled() {
        Map<String, Path> rolled = new TreeMap<>(kept);
        for (int partition = 0; partition < topic.partitions(); partition++) {
            String last = null;
            for (String name : rolled.keySet()) {
                last = name.startsWith(partition + "/") ? name : last;
            }
            if (last != null) {
                rolled.remove(last);
            }
        }
        return rolled;
    }

    /** The base offsets of the closed segments of a partition, in order. */
    List<Long> rolledBaseOffsets(int partition) {
        return rolled().keySet().stream()
                .filter(name -> name.startsWith(partition + "/"))
                .map(name -> Long.parseLong(name.substring(name.indexOf('/') + 1)))
                .sorted()
                .collect(Collectors.toCollection(ArrayList::new));
    }

    /** The base offsets of the segments of a partition that are complete in the store, in order. */
    List<Long> baseOffsetsInStore(BucketView view, int partition) {
        return view.list().keySet().stream()
                .filter(key -> isOfPartition(key, partition) && key.endsWith(".manifest"))
                .map(key -> key.substring(key.lastIndexOf('/') + 1))
                .map(file -> Long.parseLong(file.substring(0, file.indexOf('-'))))
                .sorted()
                .toList();
    }

    /** Bytes of the log objects of a partition. */
    long bytesInStore(BucketView view, int partition) {
        return view.list().entrySet().stream()
                .filter(object -> isOfPartition(object.getKey(), partition) && object.getKey().endsWith(SUFFIX))
                .mapToLong(Map.Entry::getValue)
                .sum();
    }

    /** How many segments of the topic are complete in the store: those that have a manifest. */
    int inStore(BucketView view) {
        return (int) view.list().keySet().stream().filter(key -> topic.owns(key) && key.endsWith(".manifest")).count();
    }

    /** Whether every closed segment is in the store and only the active ones are on the broker's disk. */
    boolean allTiered(BucketView view) {
        int rolled = rolled().size();
        return rolled > 0 && inStore(view) == rolled && onDisk() == topic.partitions();
    }

    /**
     * Compares every closed segment with its object, byte for byte.
     *
     * @return what is wrong, one line a segment; empty when all are the same
     */
    List<String> differencesTo(BucketView view) {
        Map<String, Long> objects = view.list();
        List<String> differences = new ArrayList<>();
        rolled().forEach((name, file) -> {
            List<String> keys = keysOf(objects, name);
            if (keys.size() != 1) {
                differences.add("segment " + name + " has " + keys.size() + " objects");
            } else if (!sameBytes(view, keys.get(0), file)) {
                differences.add("object " + keys.get(0) + " differs from the broker's file");
            }
        });
        return differences;
    }

    /** The keys of the `.log` objects of a segment that is named as in {@link #rolled}: one, if all is well. */
    List<String> keysOf(Map<String, Long> objects, String segment) {
        return objects.keySet().stream()
                .filter(key -> topic.owns(key) && key.contains("/" + segment + "-") && key.endsWith(SUFFIX))
                .toList();
    }

    private boolean isOfPartition(String key, int partition) {
        return topic.owns(key) && key.contains("/" + partition + "/");
    }

    @Override
    public void close() {
        closed = true;
        try {
            keeper.join();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void keep() {
        while (!closed) {
            for (int partition = 0; partition < topic.partitions(); partition++) {
                for (Path file : segmentFiles(partition)) {
                    keepOne(partition, file);
                }
            }
            Await.pause(POLL_MILLIS);
        }
    }

    private void keepOne(int partition, Path file) {
        String baseOffset = file.getFileName().toString().replace(SUFFIX, "");
        String name = partition + "/" + baseOffset;
        if (kept.containsKey(name)) {
            return;
        }
        Path link = directory.resolve(String.valueOf(partition)).resolve(file.getFileName());
        try {
            Files.createDirectories(link.getParent());
            Files.createLink(link, file);
            kept.put(name, link);
        } catch (FileAlreadyExistsException alreadyKept) {
            kept.put(name, link);
        } catch (NoSuchFileException gone) {
            // Renamed for deletion in this instant: the comparison will report the segment as not kept.
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private List<Path> segmentFiles(int partition) {
        List<Path> files = new ArrayList<>();
        try (DirectoryStream<Path> found =
                Files.newDirectoryStream(broker.partitionDirectory(topic.name(), partition), "*" + SUFFIX)) {
            found.forEach(files::add);
        } catch (NoSuchFileException notYetOrNoMore) {
            return files;
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        return files;
    }

    private static boolean sameBytes(BucketView view, String key, Path file) {
        byte[] ours = new byte[1 << 20];
        byte[] theirs = new byte[ours.length];
        try (InputStream local = Files.newInputStream(file); InputStream stored = view.open(key)) {
            while (true) {
                int localRead = local.readNBytes(ours, 0, ours.length);
                int storedRead = stored.readNBytes(theirs, 0, theirs.length);
                if (localRead != storedRead || !Arrays.equals(ours, 0, localRead, theirs, 0, storedRead)) {
                    return false;
                }
                if (localRead == 0) {
                    return true;
                }
            }
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}

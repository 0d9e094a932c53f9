package io.alluvium.bench.check;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * A plugin that keeps segments in a directory, and lies about them as it is told, to prove that the benchmark notices.
 *
 * <p>Settings: {@code directory}, and {@code lie}: none; flip, one byte of each segment is another; index, the same of
 * each offset index; short, each segment ends a byte early; forgetful, the copy gives none of the custom metadata that
 * a fetch needs.
 */
public final class DirectoryPlugin implements RemoteStorageManager {
    private Path directory;
    private String lie;

    @Override
    public void configure(Map<String, ?> settings) {
        directory = Path.of((String) settings.get("directory"));
        lie = (String) settings.get("lie");
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata metadata, LogSegmentData data)
            throws RemoteStorageException {
        try {
            Files.createDirectories(directory);
            Files.copy(data.logSegment(), file(metadata, "LOG"));
            Files.copy(data.offsetIndex(), file(metadata, IndexType.OFFSET.name()));
            Files.copy(data.timeIndex(), file(metadata, IndexType.TIMESTAMP.name()));
            if (data.transactionIndex().isPresent()) {
                Files.copy(data.transactionIndex().get(), file(metadata, IndexType.TRANSACTION.name()));
            }
        } catch (IOException failure) {
            throw new RemoteStorageException(failure);
        }
        return lie.equals("forgetful") ? Optional.empty() : Optional.of(new CustomMetadata(new byte[] {1}));
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int startPosition) throws RemoteStorageException {
        return fetchLogSegment(metadata, startPosition, metadata.segmentSizeInBytes() - 1);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int startPosition, int endPosition)
            throws RemoteStorageException {
        if (metadata.customMetadata().isEmpty()) {
            throw new RemoteStorageException("no custom metadata");
        }
        byte[] segment = read(metadata, "LOG");
        if (lie.equals("flip")) {
            segment[segment.length / 2] ^= 1;
        }
        int end = endPosition + (lie.equals("short") ? 0 : 1);
        return new ByteArrayInputStream(segment, startPosition, end - startPosition);
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata metadata, IndexType indexType) throws RemoteStorageException {
        byte[] index = read(metadata, indexType.name());
        if (lie.equals("index") && indexType == IndexType.OFFSET) {
            index[index.length / 2] ^= 1;
        }
        return new ByteArrayInputStream(index);
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata metadata) throws RemoteStorageException {
        try (DirectoryStream<Path> files = Files.newDirectoryStream(directory, metadata.remoteLogSegmentId().id() + ".*")) {
            for (Path file : files) {
                Files.delete(file);
            }
        } catch (IOException failure) {
            throw new RemoteStorageException(failure);
        }
    }

    @Override
    public void close() {
    }

    private Path file(RemoteLogSegmentMetadata metadata, String kind) {
        return directory.resolve(metadata.remoteLogSegmentId().id() + "." + kind);
    }

    private byte[] read(RemoteLogSegmentMetadata metadata, String kind) throws RemoteStorageException {
        try {
            return Files.readAllBytes(file(metadata, kind));
        } catch (NoSuchFileException absent) {
            throw new RemoteResourceNotFoundException(absent);
        } catch (IOException failure) {
            throw new RemoteStorageException(failure);
        }
    }
}

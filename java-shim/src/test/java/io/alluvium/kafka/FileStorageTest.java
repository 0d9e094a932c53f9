package io.alluvium.kafka;

import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.io.TempDir;

final class FileStorageTest extends StorageContract {
    @TempDir
    Path root;

    @Override
    Map<String, Object> configs() {
        return Plugin.onDirectory(root);
    }
}

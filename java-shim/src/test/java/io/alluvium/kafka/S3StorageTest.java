package io.alluvium.kafka;

import java.io.IOException;
import java.util.Map;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;

final class S3StorageTest extends StorageContract {
    private static S3Server server;

    @BeforeAll
    static void startServer() throws IOException {
        server = new S3Server();
    }

    @AfterAll
    static void stopServer() {
        server.close();
    }

    @Override
    Map<String, Object> configs() {
        return server.configs();
    }
}

package io.alluvium.kafka;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;

/** The contract on the project's own S3 server, or on the one that the environment names (ALLUVIUM_S3_ENDPOINT and others). */
final class S3StorageTest extends StorageContract {
    private static Map<String, Object> configs;
    private static S3Server server;

    @BeforeAll
    static void findServer() throws IOException {
        if (System.getenv("ALLUVIUM_S3_ENDPOINT") == null) {
            server = new S3Server();
            configs = server.configs();
        } else {
            configs = new HashMap<>();
            configs.put("broker.id", 1);
            configs.put("s3.endpoint", System.getenv("ALLUVIUM_S3_ENDPOINT"));
            configs.put("s3.region", System.getenv("ALLUVIUM_S3_REGION"));
            configs.put("s3.bucket", System.getenv("ALLUVIUM_S3_BUCKET"));
            configs.put("s3.access.key.id", System.getenv("ALLUVIUM_S3_ACCESS_KEY"));
            configs.put("s3.secret.access.key", System.getenv("ALLUVIUM_S3_SECRET_KEY"));
            configs.put("s3.ca.file", System.getenv("ALLUVIUM_S3_CA_FILE"));
        }
    }

    @AfterAll
    static void stopServer() {
        if (server != null) {
            server.close();
        }
    }

    @Override
    Map<String, Object> configs() {
        return new HashMap<>(configs);
    }
}

package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.common.config.ConfigException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A wrong setting stops the broker at its start, within 10 seconds, with a message that names it. */
final class ConfigurationTest {
    private static final long LIMIT_SECONDS = 10;
    private static final InetAddress LOOPBACK = InetAddress.getLoopbackAddress();

    private static S3Server server;

    @TempDir
    static Path tls;

    @TempDir
    Path folder;

    @BeforeAll
    static void startServer() throws IOException {
        server = new S3Server();
    }

    @AfterAll
    static void stopServer() {
        server.close();
    }

    private static Map<String, Object> s3With(String key, Object value) {
        Map<String, Object> configs = server.configs();
        configs.put(key, value);
        return configs;
    }

    private static void assertRefused(Map<String, Object> configs, String... named) {
        AlluviumRemoteStorageManager manager = new AlluviumRemoteStorageManager();
        long start = System.nanoTime();
        ConfigException refusal = assertThrows(ConfigException.class, () -> manager.configure(configs));
        long seconds = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - start);
        String message = refusal.getMessage();
        assertTrue(seconds < LIMIT_SECONDS, () -> "it took " + seconds + " s: " + message);
        for (String pattern : named) {
            assertTrue(Pattern.compile(pattern).matcher(message).find(), () -> pattern + " is not in: " + message);
        }
        assertFalse(message.contains(S3Server.SECRET_KEY), message);
        assertFalse(message.contains("\n"), () -> "more than one line: " + message);
        manager.close();
    }

    @Test
    void rightSettingsAreTaken() {
        Plugin.open(server.configs()).close();
        Plugin.open(Plugin.onDirectory(folder)).close();
        Map<String, Object> newer = Plugin.onDirectory(folder);
        newer.put("node.id", 1);
        Plugin.open(newer).close();
    }

    @Test
    void anUnknownKeyIsNamedWithTheNearestKnownOne() {
        assertRefused(s3With("s3.bucket.nam", "x"), "s3\\.bucket\\.nam", "s3\\.bucket");
        Map<String, Object> configs = Plugin.onDirectory(folder);
        configs.put("chunk.size.byte", "65536");
        assertRefused(configs, "chunk\\.size\\.byte\\b", "chunk\\.size\\.bytes");
    }

    @Test
    void aMissingKeyIsNamed() {
        Map<String, Object> configs = server.configs();
        configs.remove("s3.bucket");
        assertRefused(configs, "s3\\.bucket");
        assertRefused(new HashMap<>(Map.of("storage.type", "file")), "file\\.path");
    }

    @Test
    void aValueOutOfRangeIsNamed() {
        Map<String, Object> configs = Plugin.onDirectory(folder);
        configs.put("chunk.size.bytes", "12345");
        assertRefused(configs, "chunk\\.size\\.bytes");
        configs.put("chunk.size.bytes", "many");
        assertRefused(configs, "chunk\\.size\\.bytes");
    }

    @Test
    void aRefusedConnectionNamesTheEndpoint() throws IOException {
        int port;
        try (ServerSocket socket = new ServerSocket(0, 1, LOOPBACK)) {
            port = socket.getLocalPort();
        }
        assertRefused(s3With("s3.endpoint", "http://127.0.0.1:" + port), "s3\\.endpoint");
    }

    @Test
    void anEndpointThatNeverAnswersIsNamed() throws IOException {
        try (ServerSocket silent = new ServerSocket(0, 50, LOOPBACK)) {
            assertRefused(s3With("s3.endpoint", "http://127.0.0.1:" + silent.getLocalPort()), "s3\\.endpoint");
        }
    }

    @Test
    void aHostWithoutAnAddressNamesTheEndpoint() {
        assertRefused(s3With("s3.endpoint", "http://s3.host.invalid:9000"), "s3\\.endpoint");
    }

    @Test
    void anEndpointThatIsNoUrlIsNamed() {
        assertRefused(s3With("s3.endpoint", "127.0.0.1"), "s3\\.endpoint");
    }

    @Test
    void wrongCredentialsAreNamed() {
        assertRefused(s3With("s3.secret.access.key", "wrong"), "s3\\.(secret\\.access\\.key|access\\.key\\.id|credentials)");
        assertRefused(s3With("s3.access.key.id", "WRONG"), "s3\\.(secret\\.access\\.key|access\\.key\\.id|credentials)");
    }

    @Test
    void aMissingBucketIsNamed() {
        assertRefused(s3With("s3.bucket", "another"), "s3\\.bucket");
    }

    @Test
    void aWrongRegionIsNamed() {
        assertRefused(s3With("s3.region", "mars-1"), "s3\\.region");
    }

    @Test
    void anUntrustedCertificateNamesTheCaFile() throws Exception {
        Path other = Files.createDirectory(folder.resolve("other"));
        try (S3Server secure = new S3Server("--tls-dir", tls.toString());
            S3Server unrelated = new S3Server("--tls-dir", other.toString())) {
            Map<String, Object> configs = secure.configs();
            assertRefused(configs, "s3\\.ca\\.file");
            configs.put("s3.ca.file", other.resolve("ca.pem").toString());
            assertRefused(configs, "s3\\.ca\\.file");
            configs.put("s3.ca.file", folder.resolve("missing.pem").toString());
            assertRefused(configs, "s3\\.ca\\.file");
            configs.put("s3.ca.file", tls.resolve("ca.pem").toString());
            Plugin.open(configs).close();
        }
    }

    @Test
    void aDirectoryThatIsMissingOrAFileIsNamed() throws Exception {
        assertRefused(Plugin.onDirectory(folder.resolve("missing")), "file\\.path", "missing");
        assertRefused(Plugin.onDirectory(Files.createFile(folder.resolve("plain"))), "file\\.path");
        assertRefused(Plugin.onDirectory(Path.of("/proc/sys")), "file\\.path");
    }
}

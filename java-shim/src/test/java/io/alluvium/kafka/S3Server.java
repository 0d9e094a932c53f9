package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The project's S3 server for tests, as a process of its own; ends with it. */
final class S3Server implements AutoCloseable {
    static final String BUCKET = "segments";
    static final String ACCESS_KEY = "TESTACCESSKEY";
    static final String SECRET_KEY = "test-secret-never-to-be-logged";
    static final String REGION = "eu-test-1";

    private final Process process;
    private final HttpClient client = HttpClient.newHttpClient();
    final String endpoint;
    private final String admin;

    S3Server(String... more) throws IOException {
        List<String> command = new ArrayList<>(List.of(
            System.getProperty("alluvium.test.testkit"), "s3-server", "--listen", "127.0.0.1:0", "--bucket", BUCKET,
            "--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY, "--region", REGION, "--exit-with-stdin"));
        command.addAll(List.of(more));
        assertTrue(new File(command.get(0)).canExecute(), () -> command.get(0) + " is missing: cargo build --release builds it");
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        endpoint = expect(lines.readLine(), "READY ");
        admin = expect(lines.readLine(), "ADMIN ");
    }

    private static String expect(String line, String start) {
        assertTrue(line != null && line.startsWith(start), () -> "the S3 server said: " + line);
        return line.substring(start.length());
    }

    /** Settings of a plugin that uses this server. */
    Map<String, Object> configs() {
        Map<String, Object> configs = new HashMap<>();
        configs.put("broker.id", 1);
        configs.put("s3.endpoint", endpoint);
        configs.put("s3.region", REGION);
        configs.put("s3.bucket", BUCKET);
        configs.put("s3.access.key.id", ACCESS_KEY);
        configs.put("s3.secret.access.key", SECRET_KEY);
        return configs;
    }

    /** Makes the server misbehave; {@code []} makes it behave again. */
    void faults(String json) throws IOException, InterruptedException {
        HttpResponse<String> response = client.send(
            request("/faults").PUT(BodyPublishers.ofString(json)).build(), BodyHandlers.ofString());
        assertEquals(2, response.statusCode() / 100, response::body);
    }

    long counter(String name) throws IOException, InterruptedException {
        String counters = client.send(request("/counters").GET().build(), BodyHandlers.ofString()).body();
        Matcher matcher = Pattern.compile("\"" + name + "\"\\s*:\\s*(\\d+)").matcher(counters);
        return matcher.find() ? Long.parseLong(matcher.group(1)) : 0;
    }

    void awaitCounter(String name, long atLeast) throws IOException, InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (counter(name) < atLeast) {
            assertTrue(System.nanoTime() < deadline, () -> name + " does not reach " + atLeast);
            Thread.sleep(10);
        }
    }

    private HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(admin + path)).timeout(Duration.ofSeconds(10));
    }

    @Override
    public void close() {
        process.destroy();
    }
}

package io.alluvium.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.alluvium.harness.Await;
import io.alluvium.harness.ChildProcess;
import io.alluvium.harness.HarnessException;
import io.alluvium.harness.Project;
import io.alluvium.harness.S3Client;
import io.alluvium.harness.S3Endpoint;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The S3 store that ALLUVIUM_S3_* names, and the counting proxy before it, if one was asked for. Without a store, which
 * suits plugins that need none, there is neither a raw limit nor a count.
 */
final class StoreLink implements AutoCloseable {
    private static final Duration START_LIMIT = Duration.ofSeconds(10);
    private static final Duration READ_LIMIT = Duration.ofMinutes(10);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Path directory;
    /** As the plugin reaches it; null without a store. */
    private final S3Endpoint endpoint;
    private final ChildProcess proxy;
    private final URI admin;
    private final HttpClient http = HttpClient.newHttpClient();

    private StoreLink(Path directory, S3Endpoint endpoint, ChildProcess proxy, URI admin) {
        this.directory = directory;
        this.endpoint = endpoint;
        this.proxy = proxy;
        this.admin = admin;
    }

    static StoreLink open(Options options, Path directory) {
        String url = System.getenv("ALLUVIUM_S3_ENDPOINT");
        if (url == null && options.isProxied()) {
            throw new HarnessException("a proxy needs a store behind it: ALLUVIUM_S3_ENDPOINT is not set");
        }
        if (url == null) {
            return new StoreLink(directory, null, null, null);
        }
        if (!options.isProxied()) {
            return new StoreLink(directory, endpointAt(url), null, null);
        }
        List<String> command = new ArrayList<>(List.of(testkit(), "fault-proxy", "--http", "--exit-with-stdin",
                "--upstream", URI.create(url).getAuthority(), "--latency-ms", options.latencyMillis.toString()));
        if (options.bytesPerSecond != null) {
            command.addAll(List.of("--bytes-per-second", options.bytesPerSecond.toString()));
        }
        if (options.totalBytesPerSecond != null) {
            command.addAll(List.of("--total-bytes-per-second", options.totalBytesPerSecond.toString()));
        }
        ChildProcess proxy = ChildProcess.start("fault-proxy", command, Map.of(), directory.resolve("proxy.out"));
        Await.until("the proxy is ready", START_LIMIT, () -> proxy.output().lines().count() == 2 && proxy.output().endsWith("\n"));
        Map<String, String> told = new TreeMap<>();
        proxy.output().lines().forEach(line -> told.put(line.split(" ")[0], line.split(" ")[1]));
        return new StoreLink(directory, endpointAt(told.get("READY")), proxy, URI.create(told.get("ADMIN")));
    }

    /** The settings, with what is known of the store in place of ${endpoint} and the like. */
    Map<String, String> fill(Map<String, String> settings) {
        Map<String, String> known = new TreeMap<>(Map.of("work", directory.toString()));
        if (endpoint != null) {
            known.putAll(Map.of(
                    "endpoint", endpoint.endpoint().toString(),
                    "bucket", endpoint.bucket(),
                    "region", endpoint.region(),
                    "access.key", endpoint.accessKey(),
                    "secret.key", endpoint.secretKey()));
        }
        Map<String, String> filled = new TreeMap<>();
        settings.forEach((key, value) -> {
            String text = value;
            for (Map.Entry<String, String> entry : known.entrySet()) {
                text = text.replace("${" + entry.getKey() + "}", entry.getValue());
            }
            if (text.contains("${")) {
                throw new HarnessException(key + "=" + value + " wants what is not known; known: " + known.keySet());
            }
            filled.put(key, text);
        });
        return filled;
    }

    void resetCounters() {
        if (admin != null) {
            send(HttpRequest.newBuilder(admin.resolve("/reset")).POST(HttpRequest.BodyPublishers.noBody()));
        }
    }

    /** What passed the proxy since the last reset; empty without one. */
    Map<String, Long> counters() {
        Map<String, Long> counters = new TreeMap<>();
        if (admin != null) {
            parse(send(HttpRequest.newBuilder(admin.resolve("/counters"))))
                    .properties().forEach(field -> counters.put(field.getKey(), field.getValue().asLong()));
        }
        return counters;
    }

    /** Reads the largest object of the bucket so many times, on the way that the plugin takes; null without a store. */
    RawLimit rawLimit(int times) {
        if (endpoint == null) {
            return null;
        }
        S3Client client = new S3Client(endpoint);
        Map.Entry<String, Long> largest = client.list("").entrySet().stream()
                .max(Map.Entry.comparingByValue())
                .orElseThrow(() -> new HarnessException("the bucket is empty after the copies"));
        S3Client.SignedRequest signed = client.signedGet(largest.getKey());
        List<String> command = new ArrayList<>(List.of(testkit(), "ranged-get", "--url", signed.uri().toString(),
                "--object-bytes", largest.getValue().toString(), "--times", String.valueOf(times)));
        signed.headers().forEach((name, value) -> command.addAll(List.of("--header", name + ": " + value)));
        ChildProcess reader = ChildProcess.start("ranged-get", command, Map.of(), directory.resolve("ranged-get.out"));
        Integer status = reader.awaitExit(READ_LIMIT);
        if (status == null || status != 0) {
            throw new HarnessException("ranged-get ended with " + status + ": " + reader.output());
        }
        return RawLimit.of(parse(reader.output()));
    }

    /** How many objects the bucket holds; 0 without a store. */
    int objects() {
        return endpoint == null ? 0 : new S3Client(endpoint).list("").size();
    }

    @Override
    public void close() {
        if (proxy != null) {
            proxy.terminate(START_LIMIT);
        }
    }

    private String send(HttpRequest.Builder request) {
        try {
            return http.send(request.build(), HttpResponse.BodyHandlers.ofString()).body();
        } catch (IOException failure) {
            throw new UncheckedIOException("the proxy does not tell its counters", failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted while asking the proxy", interrupted);
        }
    }

    private static JsonNode parse(String json) {
        try {
            return JSON.readTree(json);
        } catch (IOException failure) {
            throw new UncheckedIOException("not JSON: " + json, failure);
        }
    }

    private static String testkit() {
        return Project.root().resolve("target/release/alluvium-testkit").toString();
    }

    private static S3Endpoint endpointAt(String url) {
        return new S3Endpoint(URI.create(url), told("BUCKET"), told("REGION"), told("ACCESS_KEY"), told("SECRET_KEY"), null);
    }

    private static String told(String name) {
        String value = System.getenv("ALLUVIUM_S3_" + name);
        if (value == null) {
            throw new HarnessException("ALLUVIUM_S3_" + name + " is not set; tests/tools/with-s3 sets them all");
        }
        return value;
    }
}

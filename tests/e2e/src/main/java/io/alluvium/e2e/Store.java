package io.alluvium.e2e;

import io.alluvium.harness.HarnessException;
import io.alluvium.harness.S3Client;
import io.alluvium.harness.S3Endpoint;
import io.alluvium.harness.WorkDir;
import java.net.URI;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * Where a run tiers to: the plugin's settings for it, and an independent view of what is there.
 *
 * <p>Invariant: everything a run writes bears the run's own key prefix, and only what bears it is looked at, so that a
 * run on somebody's own bucket neither touches nor counts anything else.
 */
final class Store implements AutoCloseable {
    private final String description;
    private final Map<String, String> pluginSettings;
    private final BucketView view;
    private final List<String> secrets;
    private final S3Process server;

    private Store(String description, Map<String, String> settings, BucketView view, List<String> secrets,
            S3Process server) {
        this.description = description;
        this.pluginSettings = settings;
        this.view = view;
        this.secrets = secrets;
        this.server = server;
    }

    /** Opens the store that the environment asks for: S3_ENDPOINT, else STORE, else the embedded S3 server. */
    static Store fromEnvironment(WorkDir work) {
        String endpoint = environment("S3_ENDPOINT");
        if (endpoint != null) {
            return external(endpoint);
        }
        String name = environment("STORE");
        return open(name == null ? "embedded" : name, work);
    }

    /** Opens a store by name: file, or one of the S3 servers. */
    static Store open(String name, WorkDir work) {
        String prefix = newPrefix();
        if (name.equals("file")) {
            Path directory = work.directory("store");
            Map<String, String> settings = new LinkedHashMap<>();
            settings.put("storage.type", "file");
            settings.put("file.path", directory.toString());
            settings.put("key.prefix", prefix);
            return new Store("directory " + directory, settings, new DirectoryView(directory, prefix), List.of(), null);
        }
        if (!S3Process.NAMES.contains(name)) {
            throw new HarnessException("STORE=" + name + " is not known; known: file, " + String.join(", ", S3Process.NAMES));
        }
        S3Process server = S3Process.start(name, work.directory("s3"));
        return ofBucket(name + " S3 server at " + server.endpoint(), server.endpoint(), prefix, server);
    }

    String description() {
        return description;
    }

    boolean isS3() {
        return "s3".equals(pluginSettings.get("storage.type"));
    }

    /** The plugin's settings, without the broker's prefix for them. */
    Map<String, String> pluginSettings() {
        return new LinkedHashMap<>(pluginSettings);
    }

    BucketView view() {
        return view;
    }

    /** What must not be found in any log. */
    List<String> secrets() {
        return secrets;
    }

    @Override
    public void close() {
        if (server != null) {
            server.close();
        }
    }

    private static Store external(String endpointText) {
        String accessKey = required("S3_ACCESS_KEY", "AWS_ACCESS_KEY_ID");
        String secretKey = required("S3_SECRET_KEY", "AWS_SECRET_ACCESS_KEY");
        String bucket = required("S3_BUCKET");
        String region = environment("S3_REGION", "AWS_REGION");
        String caFile = environment("S3_CA_FILE");
        URI uri = URI.create(endpointText);
        if (uri.getScheme() == null || uri.getAuthority() == null) {
            throw new HarnessException("S3_ENDPOINT=" + endpointText + " is not a URL such as http://127.0.0.1:9000");
        }
        S3Endpoint endpoint = new S3Endpoint(uri, bucket, region == null ? "us-east-1" : region, accessKey, secretKey,
                caFile == null ? null : Path.of(caFile).toAbsolutePath());
        new S3Client(endpoint).ensureBucket();
        String prefix = newPrefix();
        return ofBucket(endpoint + " under " + prefix, endpoint, prefix, null);
    }

    private static Store ofBucket(String description, S3Endpoint endpoint, String prefix, S3Process server) {
        Map<String, String> settings = new LinkedHashMap<>();
        settings.put("storage.type", "s3");
        settings.put("s3.endpoint", endpoint.endpoint().toString());
        settings.put("s3.bucket", endpoint.bucket());
        settings.put("s3.region", endpoint.region());
        settings.put("s3.credentials.provider", "static");
        settings.put("s3.access.key.id", endpoint.accessKey());
        settings.put("s3.secret.access.key", endpoint.secretKey());
        settings.put("key.prefix", prefix);
        if (endpoint.caFile() != null) {
            settings.put("s3.ca.file", endpoint.caFile().toString());
        }
        return new Store(description, settings, BucketView.ofBucket(endpoint, prefix), List.of(endpoint.secretKey()), server);
    }

    private static String newPrefix() {
        return "alluvium-run-" + UUID.randomUUID().toString().substring(0, 13) + "/";
    }

    private static String required(String... names) {
        String value = environment(names);
        if (value == null) {
            throw new HarnessException("with S3_ENDPOINT, please set also " + String.join(" or ", names));
        }
        return value;
    }

    private static String environment(String... names) {
        for (String name : names) {
            String value = System.getenv(name);
            if (value != null && !value.isEmpty()) {
                return value;
            }
        }
        return null;
    }
}

package io.alluvium.e2e;

import io.alluvium.harness.Await;
import io.alluvium.harness.ChildProcess;
import io.alluvium.harness.HarnessException;
import io.alluvium.harness.Project;
import io.alluvium.harness.S3Client;
import io.alluvium.harness.S3Endpoint;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * An S3 server as a child process on the loopback interface, with keys of its own and one bucket: the project's
 * embedded server, or an independent one.
 *
 * <p>Flow: start, wait until it accepts connections, create the bucket; close ends it. A server that found its port
 * taken is started again on another.
 */
final class S3Process implements AutoCloseable {
    /** The servers that can be started. */
    static final List<String> NAMES = List.of("embedded", "versitygw", "minio");

    private static final int ATTEMPTS = 3;
    private static final Duration START_LIMIT = Duration.ofSeconds(30);
    private static final Duration STOP_LIMIT = Duration.ofSeconds(10);
    private static final String REGION = "us-east-1";
    private static final String BUCKET = "alluvium-e2e";
    private static final HexFormat HEX = HexFormat.of();

    private final ChildProcess process;
    private final S3Endpoint endpoint;

    private S3Process(ChildProcess process, S3Endpoint endpoint) {
        this.process = process;
        this.endpoint = endpoint;
    }

    /** Starts the named server with its data inside the directory. */
    static S3Process start(String name, Path directory) {
        String accessKey = "AK" + randomHex(9).toUpperCase(Locale.ROOT);
        String secretKey = randomHex(20);
        for (int attempt = 1;; attempt++) {
            ChildProcess process = null;
            try {
                Path output = directory.resolve(name + "-" + attempt + ".out");
                Path data = directory.resolve("data");
                Files.createDirectories(data);
                int port = name.equals("embedded") ? 0 : FreePort.one();
                process = launch(name, data, port, accessKey, secretKey, output);
                URI uri = awaitReady(name, process, port);
                S3Endpoint endpoint = new S3Endpoint(uri, BUCKET, REGION, accessKey, secretKey, null);
                new S3Client(endpoint).ensureBucket();
                return new S3Process(process, endpoint);
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            } catch (PortTaken taken) {
                if (attempt == ATTEMPTS) {
                    throw new HarnessException(name + " does not start:\n" + ChildProcess.tail(process.output(), 20));
                }
            } catch (RuntimeException failure) {
                if (process != null && process.isAlive()) {
                    process.kill();
                }
                throw failure;
            }
        }
    }

    S3Endpoint endpoint() {
        return endpoint;
    }

    @Override
    public void close() {
        process.terminate(STOP_LIMIT);
    }

    private static ChildProcess launch(
            String name, Path data, int port, String accessKey, String secretKey, Path output) throws IOException {
        String address = "127.0.0.1:" + port;
        Map<String, String> environment = new HashMap<>();
        List<String> command = switch (name) {
            case "embedded" -> List.of(
                    Project.root().resolve("target/release/alluvium-testkit").toString(), "s3-server",
                    "--listen", address, "--data", data.toString(), "--bucket", BUCKET,
                    "--access-key", accessKey, "--secret-key", secretKey, "--region", REGION, "--exit-with-stdin");
            case "versitygw" -> {
                Path parent = data.getParent();
                Path accounts = Files.createDirectories(parent.resolve("accounts"));
                Path sidecar = Files.createDirectories(parent.resolve("sidecar"));
                environment.put("ROOT_ACCESS_KEY", accessKey);
                environment.put("ROOT_SECRET_KEY", secretKey);
                yield List.of(installed("versitygw"), "--port", address, "--keep-alive", "--quiet",
                        "--region", REGION, "--iam-dir", accounts.toString(),
                        "posix", "--sidecar", sidecar.toString(), data.toString());
            }
            case "minio" -> {
                environment.put("MINIO_ROOT_USER", accessKey);
                environment.put("MINIO_ROOT_PASSWORD", secretKey);
                environment.put("MINIO_SITE_REGION", REGION);
                environment.put("MINIO_BROWSER", "off");
                environment.put("MINIO_UPDATE", "off");
                yield List.of(installed("minio"), "server", data.toString(), "--address", address);
            }
            default -> throw new HarnessException("unknown S3 server " + name + "; known: " + NAMES);
        };
        return ChildProcess.start(name, command, environment, output);
    }

    private static URI awaitReady(String name, ChildProcess process, int port) throws PortTaken {
        String announcement = "READY ";
        boolean ready = Await.holds(START_LIMIT, () -> !process.isAlive()
                || (port == 0 ? process.output().contains(announcement) : accepts(port)));
        if (!process.isAlive()) {
            throw new PortTaken();
        }
        if (!ready) {
            throw new HarnessException(name + " is not ready after " + START_LIMIT.toSeconds() + " s:\n"
                    + ChildProcess.tail(process.output(), 20));
        }
        if (port != 0) {
            return URI.create("http://127.0.0.1:" + port);
        }
        // The line may still be half written: it is whole once its end is there.
        Await.until("a whole READY line of " + name, START_LIMIT, () -> readyLine(process, announcement) != null);
        return URI.create(readyLine(process, announcement).trim());
    }

    private static String readyLine(ChildProcess process, String announcement) {
        String output = process.output();
        int from = output.indexOf(announcement) + announcement.length();
        int end = output.indexOf('\n', from);
        return end < 0 ? null : output.substring(from, end);
    }

    private static boolean accepts(int port) {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 500);
            return true;
        } catch (IOException notYet) {
            return false;
        }
    }

    /** The path that tests/tools prints, after it installed the server if it had to. */
    private static String installed(String name) {
        String script = Project.root().resolve("tests/tools").resolve(name).toString();
        try {
            Process process = new ProcessBuilder(script).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            try (BufferedReader lines =
                    new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
                String path = lines.readLine();
                if (process.waitFor() != 0 || path == null) {
                    throw new HarnessException(name + " is not available (see above)");
                }
                return path;
            }
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted while installing " + name, interrupted);
        }
    }

    private static String randomHex(int bytes) {
        byte[] random = new byte[bytes];
        new SecureRandom().nextBytes(random);
        return HEX.formatHex(random);
    }

    /** The server ended at once: most likely another process took the port in between. */
    private static final class PortTaken extends Exception {
        private static final long serialVersionUID = 1L;
    }
}

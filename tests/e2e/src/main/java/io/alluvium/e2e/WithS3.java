package io.alluvium.e2e;

import io.alluvium.harness.HarnessException;
import io.alluvium.harness.S3Endpoint;
import io.alluvium.harness.WorkDir;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * Runs a command while an S3 server runs, and tells it in ALLUVIUM_S3_* where the server is:
 * {@code WithS3 SERVER COMMAND...}. The command's exit status is passed on.
 */
public final class WithS3 {
    private WithS3() {
    }

    /** The first argument names the server, the others are the command. */
    public static void main(String[] arguments) {
        if (arguments.length < 2) {
            System.err.println("usage: with-s3 " + String.join("|", S3Process.NAMES) + " COMMAND...");
            System.exit(2);
        }
        WorkDir work = new WorkDir("s3");
        int status = 1;
        try (S3Process server = S3Process.start(arguments[0], work.path())) {
            status = run(server.endpoint(), Arrays.asList(arguments).subList(1, arguments.length));
        } catch (HarnessException failure) {
            System.err.println(failure.getMessage());
        } finally {
            work.finish(true);
        }
        System.exit(status);
    }

    private static int run(S3Endpoint server, List<String> command) {
        ProcessBuilder builder = new ProcessBuilder(command).inheritIO();
        Map<String, String> environment = builder.environment();
        environment.put("ALLUVIUM_S3_ENDPOINT", server.endpoint().toString());
        environment.put("ALLUVIUM_S3_BUCKET", server.bucket());
        environment.put("ALLUVIUM_S3_ACCESS_KEY", server.accessKey());
        environment.put("ALLUVIUM_S3_SECRET_KEY", server.secretKey());
        environment.put("ALLUVIUM_S3_REGION", server.region());
        try {
            return builder.start().waitFor();
        } catch (IOException failure) {
            throw new HarnessException("could not run " + command.get(0) + ": " + failure.getMessage(), failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted while the command ran", interrupted);
        }
    }
}

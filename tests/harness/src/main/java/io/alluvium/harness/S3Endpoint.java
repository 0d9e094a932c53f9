package io.alluvium.harness;

import java.net.URI;
import java.nio.file.Path;

/**
 * Where a bucket is and who may use it.
 *
 * @param caFile a PEM file with the authorities to trust, or null for the system's
 */
public record S3Endpoint(URI endpoint, String bucket, String region, String accessKey, String secretKey, Path caFile) {
    /** Without the secret: this text may be shown. */
    @Override
    public String toString() {
        return endpoint + "/" + bucket + " (region " + region + ")";
    }
}

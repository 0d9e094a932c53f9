package io.alluvium.e2e;

import io.alluvium.harness.S3Client;
import io.alluvium.harness.S3Endpoint;
import java.io.InputStream;
import java.util.Map;

/** What a store holds under the run's prefix, seen without the plugin. */
interface BucketView {
    /** Every object with its size, in key order; keys are whole, with the prefix. */
    Map<String, Long> list();

    /** The bytes of one object; the caller closes the stream. */
    InputStream open(String key);

    /** A view of a bucket. */
    static BucketView ofBucket(S3Endpoint endpoint, String prefix) {
        S3Client client = new S3Client(endpoint);
        return new BucketView() {
            @Override
            public Map<String, Long> list() {
                return client.list(prefix);
            }

            @Override
            public InputStream open(String key) {
                return client.get(key);
            }
        };
    }
}

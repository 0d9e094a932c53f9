package io.alluvium.harness;

import java.io.IOException;
import java.io.InputStream;
import java.io.StringReader;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import javax.xml.parsers.DocumentBuilderFactory;
import javax.xml.parsers.ParserConfigurationException;
import org.w3c.dom.Document;
import org.w3c.dom.Element;
import org.w3c.dom.NodeList;
import org.xml.sax.InputSource;
import org.xml.sax.SAXException;

/**
 * A small S3 client (path style, Signature Version 4) that shares nothing with the plugin: what it sees in a bucket is
 * an independent witness. It creates a bucket, lists, and reads objects; it never changes or deletes one.
 */
public final class S3Client {
    private static final Duration CONNECT_LIMIT = Duration.ofSeconds(5);
    private static final Duration REQUEST_LIMIT = Duration.ofSeconds(60);
    private static final DateTimeFormatter SIGNING_TIME =
            DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'").withZone(ZoneOffset.UTC);
    private static final String EMPTY_SHA256 = sha256Hex(new byte[0]);

    /** A request that may be sent: its address, and the headers that sign it. */
    public record SignedRequest(URI uri, Map<String, String> headers) {
    }

    private final S3Endpoint target;
    private final HttpClient http;

    public S3Client(S3Endpoint target) {
        this.target = target;
        HttpClient.Builder builder = HttpClient.newBuilder()
                .connectTimeout(CONNECT_LIMIT)
                .version(HttpClient.Version.HTTP_1_1);
        if (target.caFile() != null) {
            builder.sslContext(trusting(target.caFile()));
        }
        http = builder.build();
    }

    /** Makes the bucket unless it is there. */
    public void ensureBucket() {
        HttpResponse<InputStream> listed = send("GET", "", query("list-type", "2", "max-keys", "1"));
        drain(listed);
        if (listed.statusCode() == 200) {
            return;
        }
        HttpResponse<InputStream> made = send("PUT", "", query());
        String answer = drain(made);
        if (made.statusCode() != 200 && !answer.contains("BucketAlreadyOwnedByYou")) {
            throw new HarnessException("could not create bucket " + target + ": HTTP " + made.statusCode() + " " + answer);
        }
    }

    /** Every object under the prefix with its size, in key order. */
    public Map<String, Long> list(String prefix) {
        Map<String, Long> sizes = new TreeMap<>();
        String continuation = null;
        do {
            Map<String, String> query = query("list-type", "2", "prefix", prefix);
            if (continuation != null) {
                query.put("continuation-token", continuation);
            }
            HttpResponse<InputStream> response = send("GET", "", query);
            String body = drain(response);
            if (response.statusCode() != 200) {
                throw new HarnessException("could not list " + target + ": HTTP " + response.statusCode() + " " + body);
            }
            Element page = parseXml(body).getDocumentElement();
            NodeList contents = page.getElementsByTagName("Contents");
            for (int index = 0; index < contents.getLength(); index++) {
                Element entry = (Element) contents.item(index);
                sizes.put(text(entry, "Key"), Long.parseLong(text(entry, "Size")));
            }
            continuation = "true".equals(text(page, "IsTruncated")) ? text(page, "NextContinuationToken") : null;
        } while (continuation != null);
        return sizes;
    }

    /** The bytes of one object; the caller closes the stream. */
    public InputStream get(String key) {
        HttpResponse<InputStream> response = send("GET", key, query());
        if (response.statusCode() != 200) {
            throw new HarnessException("could not read " + key + ": HTTP " + response.statusCode() + " " + drain(response));
        }
        return response.body();
    }

    /** What another program needs to read the object, any range of it, for some minutes. */
    public SignedRequest signedGet(String key) {
        return signed("GET", key, query());
    }

    private HttpResponse<InputStream> send(String method, String key, Map<String, String> query) {
        SignedRequest signed = signed(method, key, query);
        HttpRequest.Builder request = HttpRequest.newBuilder(signed.uri())
                .timeout(REQUEST_LIMIT)
                .method(method, HttpRequest.BodyPublishers.noBody());
        signed.headers().forEach(request::header);
        try {
            return http.send(request.build(), HttpResponse.BodyHandlers.ofInputStream());
        } catch (IOException failure) {
            throw new UncheckedIOException("no answer from " + target + ": " + failure, failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HarnessException("interrupted while asking " + target, interrupted);
        }
    }

    private SignedRequest signed(String method, String key, Map<String, String> query) {
        String path = "/" + encodePath(target.bucket()) + (key.isEmpty() ? "" : "/" + encodePath(key));
        String queryText = encodeQuery(query);
        String base = target.endpoint().getScheme() + "://" + target.endpoint().getAuthority();
        URI uri = URI.create(base + path + (queryText.isEmpty() ? "" : "?" + queryText));
        String time = SIGNING_TIME.format(Instant.now());
        return new SignedRequest(uri, Map.of(
                "x-amz-date", time,
                "x-amz-content-sha256", EMPTY_SHA256,
                "Authorization", authorization(method, path, queryText, uri.getAuthority(), time)));
    }

    private String authorization(String method, String path, String queryText, String host, String time) {
        String signedHeaders = "host;x-amz-content-sha256;x-amz-date";
        String canonicalRequest = String.join("\n", method, path, queryText,
                "host:" + host, "x-amz-content-sha256:" + EMPTY_SHA256, "x-amz-date:" + time, "",
                signedHeaders, EMPTY_SHA256);
        String day = time.substring(0, 8);
        String scope = day + "/" + target.region() + "/s3/aws4_request";
        String toSign = String.join("\n", "AWS4-HMAC-SHA256", time, scope,
                sha256Hex(canonicalRequest.getBytes(StandardCharsets.UTF_8)));
        byte[] dayKey = hmac(("AWS4" + target.secretKey()).getBytes(StandardCharsets.UTF_8), day);
        byte[] signingKey = hmac(hmac(hmac(dayKey, target.region()), "s3"), "aws4_request");
        return "AWS4-HMAC-SHA256 Credential=" + target.accessKey() + "/" + scope
                + ", SignedHeaders=" + signedHeaders
                + ", Signature=" + HexFormat.of().formatHex(hmac(signingKey, toSign));
    }

    private static Map<String, String> query(String... namesAndValues) {
        Map<String, String> query = new TreeMap<>();
        for (int index = 0; index < namesAndValues.length; index += 2) {
            query.put(namesAndValues[index], namesAndValues[index + 1]);
        }
        return query;
    }

    private static String encodeQuery(Map<String, String> query) {
        List<String> pairs = new ArrayList<>();
        query.forEach((name, value) -> pairs.add(encode(name) + "=" + encode(value)));
        return String.join("&", pairs);
    }

    private static String encodePath(String path) {
        return encode(path).replace("%2F", "/");
    }

    /** RFC 3986 encoding as the signature wants it; URLEncoder encodes for HTML forms and differs in three characters. */
    private static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8)
                .replace("+", "%20").replace("*", "%2A").replace("%7E", "~");
    }

    private static String drain(HttpResponse<InputStream> response) {
        try (InputStream body = response.body()) {
            return new String(body.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private static String text(Element parent, String tag) {
        NodeList found = parent.getElementsByTagName(tag);
        return found.getLength() == 0 ? null : found.item(0).getTextContent();
    }

    private static Document parseXml(String body) {
        try {
            DocumentBuilderFactory factory = DocumentBuilderFactory.newInstance();
            factory.setFeature("http://apache.org/xml/features/disallow-doctype-decl", true);
            return factory.newDocumentBuilder().parse(new InputSource(new StringReader(body)));
        } catch (ParserConfigurationException | SAXException failure) {
            throw new HarnessException("the answer is not XML: " + body, failure);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private static SSLContext trusting(Path caFile) {
        try (InputStream pem = Files.newInputStream(caFile)) {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            for (Certificate certificate : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                store.setCertificateEntry("ca-" + store.size(), certificate);
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (IOException | GeneralSecurityException failure) {
            throw new HarnessException("the CA file " + caFile + " cannot be used: " + failure.getMessage(), failure);
        }
    }

    private static String sha256Hex(byte[] data) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(data));
        } catch (GeneralSecurityException failure) {
            throw new HarnessException("this JVM has no SHA-256", failure);
        }
    }

    private static byte[] hmac(byte[] key, String text) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
        } catch (GeneralSecurityException failure) {
            throw new HarnessException("this JVM has no HmacSHA256", failure);
        }
    }
}

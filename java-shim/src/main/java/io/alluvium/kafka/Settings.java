package io.alluvium.kafka;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.types.Password;

/** The configuration as Kafka hands it over, as strings. What it means is the library's business, but for three keys. */
final class Settings {
    static final String LIBRARY_PATH = "native.library.path";
    static final String EXTRACT_PATH = "native.extract.path";

    private final Map<String, String> values = new TreeMap<>();

    Settings(Map<String, ?> configs) {
        for (Map.Entry<String, ?> entry : configs.entrySet()) {
            Object value = entry.getValue();
            if (value instanceof Password) {
                values.put(entry.getKey(), ((Password) value).value());
            } else if (value != null) {
                values.put(entry.getKey(), value.toString());
            }
        }
    }

    /** The value without blanks around it, or null when there is none. */
    String get(String key) {
        String value = values.get(key);
        return value == null || value.trim().isEmpty() ? null : value.trim();
    }

    /** Brokers from 5.0 on give {@code node.id} only; tools may give neither. */
    String brokerId() {
        String broker = get("broker.id");
        String node = get("node.id");
        if (broker != null) {
            return broker;
        }
        return node != null ? node : "none";
    }

    String[] keysAndValues() {
        List<String> flat = new ArrayList<>(2 * values.size());
        values.forEach((key, value) -> {
            flat.add(key);
            flat.add(value);
        });
        return flat.toArray(new String[0]);
    }

    /** Values may be secrets. */
    @Override
    public String toString() {
        return "Settings" + values.keySet();
    }
}

package io.alluvium.bench;

import com.fasterxml.jackson.databind.JsonNode;

/** What parallel GETs of an object take that do nothing with the bytes: `alluvium-testkit ranged-get`. */
record RawLimit(long bytes, double wallSeconds, double cpuSeconds) {
    static RawLimit of(JsonNode told) {
        return new RawLimit(told.get("bytes").asLong(), told.get("wall_seconds").asDouble(), told.get("cpu_seconds").asDouble());
    }

    double mibPerSecond() {
        return Row.mib(bytes) / wallSeconds;
    }

    double cpuSecondsPerGib() {
        return cpuSeconds / (Row.mib(bytes) / 1024);
    }
}

package io.alluvium.kafka;

/** What was asked of the plugin; decides which exception a failure becomes. */
enum Operation {
    CONFIGURE("configure"),
    COPY("copy a segment"),
    FETCH("fetch a segment"),
    FETCH_INDEX("fetch an index"),
    DELETE("delete a segment");

    private final String words;

    Operation(String words) {
        this.words = words;
    }

    @Override
    public String toString() {
        return words;
    }
}

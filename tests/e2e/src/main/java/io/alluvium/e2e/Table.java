package io.alluvium.e2e;

import java.util.ArrayList;
import java.util.List;

/** The short table at the end of the demo. */
final class Table {
    private final List<String> rows = new ArrayList<>();

    void add(String name, String format, Object... values) {
        rows.add(String.format("%-18s%s", name, String.format(format, values)));
    }

    void print() {
        if (!rows.isEmpty()) {
            System.out.println();
            rows.forEach(System.out::println);
        }
    }
}

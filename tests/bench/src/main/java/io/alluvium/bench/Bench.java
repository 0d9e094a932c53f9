package io.alluvium.bench;

import io.alluvium.harness.HarnessException;
import io.alluvium.harness.WorkDir;
import java.util.List;
import java.util.stream.Stream;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** Measures a RemoteStorageManager as a broker uses it; tests/bench/README.md says what and how. */
public final class Bench {
    private static final int SEGMENTS = 2;

    private Bench() {
    }

    /**
     * Ends with 0 when every case was measured and every byte was right, with 1 when not, with 2 when the command line
     * is wrong.
     */
    public static void main(String[] arguments) {
        Options options;
        try {
            options = Options.parse(arguments);
        } catch (HarnessException wrong) {
            System.err.println(wrong.getMessage());
            System.exit(2);
            return;
        }
        Report report = new Report(options);
        WorkDir work = new WorkDir("bench");
        int failed = 0;
        try (StoreLink store = StoreLink.open(options, work.path())) {
            for (Content content : options.contents) {
                failed += measure(options, content, store, work, report);
            }
        } catch (HarnessException failure) {
            System.err.println(failure.getMessage());
            failed++;
        } finally {
            work.finish(true);
        }
        System.out.println("\n" + report.rows() + " rows measured, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    /** The failures: 0, or 1 when this content could not be measured to the end. */
    private static int measure(Options options, Content content, StoreLink store, WorkDir work, Report report) {
        SegmentWriter writer = new SegmentWriter(work.directory(content.toString()), content, options.segmentBytes, options.seed);
        List<LocalSegment> locals = Stream.generate(writer::next).limit(SEGMENTS).toList();
        report.begin(content, locals);
        try (RemoteStorageManager plugin = Plugin.load(options.className, options.classPath, store.fill(options.settings))) {
            new Cases(options, plugin, store, report, locals).run();
            return 0;
        } catch (Reading.WrongBytes wrong) {
            System.out.println("\nWRONG BYTES: " + wrong.getMessage());
        } catch (Exception failure) {
            failure.printStackTrace();
        } finally {
            locals.forEach(LocalSegment::close);
        }
        return 1;
    }
}

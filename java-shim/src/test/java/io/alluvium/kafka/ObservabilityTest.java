package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import javax.management.AttributeNotFoundException;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What an operator sees: MBeans and log lines. */
final class ObservabilityTest {
    private static final MBeanServer SERVER = ManagementFactory.getPlatformMBeanServer();

    @TempDir
    Path folder;

    @TempDir
    Path root;

    private static Set<ObjectName> beans(String broker) throws Exception {
        return SERVER.queryNames(new ObjectName("io.alluvium:broker=" + broker + ",*"), null);
    }

    @Test
    void mbeansAppearCountAndVanish() throws Exception {
        Map<String, Object> configs = Plugin.onDirectory(root);
        configs.put("broker.id", 4711);
        TestSegment segment = TestSegment.of(folder, 1000);
        assertEquals(Set.of(), beans("4711"));
        try (AlluviumRemoteStorageManager manager = Plugin.open(configs)) {
            long before = sum("4711");
            manager.copyLogSegmentData(segment.metadata, segment.data);
            segment.assertReadableFrom(manager);
            assertTrue(sum("4711") > before, "copies and reads are counted");
        }
        assertEquals(Set.of(), beans("4711"));
    }

    /** Reads every attribute of every MBean, each way, and checks how it is described. */
    private static long sum(String broker) throws Exception {
        long sum = 0;
        Set<ObjectName> names = beans(broker);
        assertFalse(names.isEmpty());
        for (ObjectName name : names) {
            for (MBeanAttributeInfo attribute : SERVER.getMBeanInfo(name).getAttributes()) {
                assertTrue(attribute.getName().matches("[a-z][a-z0-9_]*"), attribute.getName());
                assertTrue(attribute.getDescription().matches(".+\\((counter|gauge), .+\\)"), attribute.getDescription());
                sum += (Long) SERVER.getAttribute(name, attribute.getName());
                assertEquals(1, SERVER.getAttributes(name, new String[] {attribute.getName(), "nonsense"}).size());
            }
            assertThrows(AttributeNotFoundException.class, () -> SERVER.getAttribute(name, "nonsense"));
        }
        return sum;
    }

    @Test
    void instancesOfOneBrokerAreToldApart() throws Exception {
        Map<String, Object> configs = Plugin.onDirectory(root);
        configs.remove("broker.id");
        configs.put("node.id", "4712");
        try (AlluviumRemoteStorageManager first = Plugin.open(configs)) {
            int each = beans("4712").size();
            try (AlluviumRemoteStorageManager second = Plugin.open(configs)) {
                assertEquals(2 * each, beans("4712").size());
                assertEquals(each, beans("4712,instance=2").size());
            }
            assertEquals(each, beans("4712").size());
        }
    }

    @Test
    void eventsOfTheLibraryReachTheLog() throws Exception {
        Map<String, Object> configs = Plugin.onDirectory(root);
        Plugin.open(configs).close();
        // The last close waits for the log, so all lines are there.
        String log = Files.readString(Path.of(System.getProperty("org.slf4j.simpleLogger.logFile")));
        assertTrue(log.contains("io.alluvium.engine."), log);
        assertTrue(log.contains(root.toString()), "the line of this test's instance");
    }

    @Test
    void secretsStayOutOfTheLog() throws Exception {
        try (S3Server server = new S3Server()) {
            Map<String, Object> configs = server.configs();
            configs.put("log.level", "trace");
            TestSegment segment = TestSegment.of(folder, 1000);
            try (AlluviumRemoteStorageManager manager = Plugin.open(configs)) {
                manager.copyLogSegmentData(segment.metadata, segment.data);
                segment.assertReadableFrom(manager);
            }
        }
        String log = Files.readString(Path.of(System.getProperty("org.slf4j.simpleLogger.logFile")));
        assertFalse(log.contains(S3Server.SECRET_KEY));
        assertTrue(log.contains(S3Server.BUCKET), "this test's lines are there");
        // One level for all instances: back to what the others expect.
        Plugin.open(Plugin.onDirectory(root)).close();
    }

    @Test
    void targetsBecomeLoggerNames() {
        assertEquals("io.alluvium.engine.ops.copy", LogPump.loggerName("alluvium_engine::ops::copy"));
        assertEquals("io.alluvium.panic", LogPump.loggerName("alluvium::panic"));
        assertEquals("io.alluvium", LogPump.loggerName("alluvium"));
        assertEquals("io.alluvium.lib.aws_sdk_s3.client", LogPump.loggerName("aws_sdk_s3::client"));
    }
}

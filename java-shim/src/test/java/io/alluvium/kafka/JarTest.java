package io.alluvium.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.DataInputStream;
import java.io.IOException;
import java.lang.reflect.Modifier;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** What ships. */
final class JarTest {
    private static final int CLASS_FILE_OF_JAVA_11 = 55;

    @Test
    void itHoldsOurClassesAndTheLibraryAndNothingElse() throws IOException {
        try (JarFile jar = new JarFile(Plugin.JAR)) {
            List<String> names = jar.stream().map(JarEntry::getName).collect(Collectors.toList());
            for (String name : names) {
                assertTrue(name.matches("META-INF/.*|native/.*|io/(alluvium/(kafka/.*)?)?"), name);
            }
            assertTrue(names.contains("native/" + Platform.current() + "/liballuvium.so"), names::toString);
            assertTrue(names.contains("META-INF/LICENSE"), names::toString);
            assertTrue(names.stream().noneMatch(name -> name.contains("Test") || name.contains("PanicHooks")), names::toString);
            assertNotNull(jar.getManifest().getMainAttributes().getValue("Implementation-Version"));
        }
    }

    @Test
    void itsClassesLoadOnTheOldestSupportedJava() throws IOException {
        try (JarFile jar = new JarFile(Plugin.JAR)) {
            for (JarEntry entry : jar.stream().filter(found -> found.getName().endsWith(".class")).toArray(JarEntry[]::new)) {
                try (DataInputStream in = new DataInputStream(jar.getInputStream(entry))) {
                    assertEquals(0xcafebabe, in.readInt());
                    in.readUnsignedShort();
                    assertEquals(CLASS_FILE_OF_JAVA_11, in.readUnsignedShort(), entry.getName());
                }
            }
        }
    }

    @Test
    void onlyTheKafkaFacingClassIsPublic() throws Exception {
        try (JarFile jar = new JarFile(Plugin.JAR)) {
            List<String> visible = jar.stream()
                .map(JarEntry::getName)
                .filter(name -> name.endsWith(".class"))
                .map(name -> name.substring(0, name.length() - ".class".length()).replace('/', '.'))
                .filter(JarTest::isPublic)
                .collect(Collectors.toList());
            assertEquals(List.of("io.alluvium.kafka.AlluviumRemoteStorageManager"), visible);
        }
    }

    private static boolean isPublic(String name) {
        try {
            return Modifier.isPublic(Class.forName(name, false, JarTest.class.getClassLoader()).getModifiers());
        } catch (ClassNotFoundException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}

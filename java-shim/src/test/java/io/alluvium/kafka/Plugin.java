package io.alluvium.kafka;

import java.io.File;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** Instances of the plugin: in the tests' own class loader, or in one of their own as a broker makes it. */
final class Plugin {
    static final File JAR = new File(System.getProperty("alluvium.test.plugin.jar"));

    private Plugin() {}

    static AlluviumRemoteStorageManager open(Map<String, ?> configs) {
        AlluviumRemoteStorageManager manager = new AlluviumRemoteStorageManager();
        manager.configure(configs);
        return manager;
    }

    /** What Kafka adds, and a directory as the store. */
    static Map<String, Object> onDirectory(Path root) {
        Map<String, Object> configs = new HashMap<>();
        configs.put("broker.id", 1);
        configs.put("storage.type", "file");
        configs.put("file.path", root.toString());
        return configs;
    }

    static RemoteStorageManager in(ClassLoader loader) throws ReflectiveOperationException {
        return (RemoteStorageManager) loader.loadClass("io.alluvium.kafka.AlluviumRemoteStorageManager")
            .getDeclaredConstructor()
            .newInstance();
    }

    /** Finds the plugin's own classes in {@code parts} first, like the broker's loader; {@code parts} hold no others. */
    static URLClassLoader loader(File... parts) throws MalformedURLException {
        URL[] urls = new URL[parts.length];
        for (int at = 0; at < parts.length; at++) {
            urls[at] = parts[at].toURI().toURL();
        }
        return new ChildFirst(urls);
    }

    private static final class ChildFirst extends URLClassLoader {
        ChildFirst(URL[] urls) {
            super(urls, Plugin.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("io.alluvium.")) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class<?> loaded = findLoadedClass(name);
                return loaded != null ? loaded : findClass(name);
            }
        }

        @Override
        public URL getResource(String name) {
            URL own = findResource(name);
            return own != null ? own : super.getResource(name);
        }
    }
}

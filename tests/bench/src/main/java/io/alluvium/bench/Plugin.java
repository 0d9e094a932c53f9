package io.alluvium.bench;

import io.alluvium.harness.HarnessException;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.utils.ChildFirstClassLoader;
import org.apache.kafka.server.log.remote.storage.ClassLoaderAwareRemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** Loads a RemoteStorageManager as a broker does: child first, behind Kafka's own wrapper, configured once. */
final class Plugin {
    private Plugin() {
    }

    /** The class path is written as in remote.log.storage.manager.class.path; the settings bear no prefix. */
    static RemoteStorageManager load(String className, String classPath, Map<String, String> settings) {
        ClassLoader loader = new ChildFirstClassLoader(classPath, Plugin.class.getClassLoader());
        RemoteStorageManager manager;
        try {
            manager = (RemoteStorageManager) loader.loadClass(className).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException failure) {
            throw new HarnessException("cannot make a " + className + " of " + classPath + ": " + failure, failure);
        }
        Map<String, Object> configuration = new HashMap<>(settings);
        configuration.put("broker.id", LocalSegment.BROKER_ID);
        RemoteStorageManager wrapped = new ClassLoaderAwareRemoteStorageManager(manager, loader);
        wrapped.configure(configuration);
        return wrapped;
    }
}

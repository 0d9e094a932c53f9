package io.alluvium.kafka;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import javax.management.InstanceAlreadyExistsException;
import javax.management.InstanceNotFoundException;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/**
 * The library's metrics as MBeans, one for each part: {@code io.alluvium:type=<part>,broker=<id>}.
 *
 * <p>MBeans of our own, since the broker hands its metrics only to plugins on its own class path. Instances that share a
 * broker id in one virtual machine are told apart by {@code instance=<n>}.
 */
final class Metrics {
    private static final String DOMAIN = "io.alluvium";
    private static final int MAX_INSTANCES = 1_000;

    private final MBeanServer server;
    private final List<ObjectName> names;

    private Metrics(MBeanServer server, List<ObjectName> names) {
        this.server = server;
        this.names = names;
    }

    static Metrics register(long engine, String brokerId) throws JMException, NativeException {
        Map<String, MetricsBean> beans = beans(engine, Native.describeMetrics());
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        for (int instance = 1; instance <= MAX_INSTANCES; instance++) {
            Metrics metrics = new Metrics(server, new ArrayList<>());
            try {
                for (Map.Entry<String, MetricsBean> bean : beans.entrySet()) {
                    ObjectName name = name(bean.getKey(), brokerId, instance);
                    server.registerMBean(bean.getValue(), name);
                    metrics.names.add(name);
                }
                return metrics;
            } catch (InstanceAlreadyExistsException taken) {
                metrics.unregister();
            } catch (Throwable failure) {
                metrics.unregister();
                throw failure;
            }
        }
        throw new JMException(MAX_INSTANCES + " instances of alluvium are registered for broker " + brokerId);
    }

    private static Map<String, MetricsBean> beans(long engine, String[] described) {
        Map<String, List<MetricsBean.Metric>> parts = new LinkedHashMap<>();
        int count = described.length / Native.METRIC_FIELDS;
        for (int index = 0; index < count; index++) {
            int at = index * Native.METRIC_FIELDS;
            parts.computeIfAbsent(described[at], part -> new ArrayList<>())
                .add(new MetricsBean.Metric(index, described[at + 1], described[at + 2], described[at + 3], described[at + 4]));
        }
        Map<String, MetricsBean> beans = new LinkedHashMap<>();
        parts.forEach((part, metrics) -> beans.put(part, new MetricsBean(engine, count, part, metrics)));
        return beans;
    }

    private static ObjectName name(String part, String brokerId, int instance) throws JMException {
        String broker = brokerId.matches("[\\w.-]+") ? brokerId : ObjectName.quote(brokerId);
        String suffix = instance == 1 ? "" : ",instance=" + instance;
        return new ObjectName(DOMAIN + ":type=" + part + ",broker=" + broker + suffix);
    }

    void unregister() {
        for (ObjectName name : names) {
            try {
                server.unregisterMBean(name);
            } catch (InstanceNotFoundException goneAlready) {
                // Someone with access to the MBean server removed it.
            } catch (JMException failure) {
                throw new IllegalStateException(failure);
            }
        }
        names.clear();
    }
}

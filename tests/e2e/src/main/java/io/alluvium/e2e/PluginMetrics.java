package io.alluvium.e2e;

import io.alluvium.harness.HarnessException;
import java.io.IOException;
import java.util.OptionalDouble;
import java.util.Set;
import javax.management.AttributeNotFoundException;
import javax.management.JMException;
import javax.management.MBeanServerConnection;
import javax.management.MalformedObjectNameException;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/** The plugin's MBeans, read over JMX as a monitoring agent reads them. */
final class PluginMetrics implements AutoCloseable {
    private final JMXConnector connector;
    private final MBeanServerConnection server;

    PluginMetrics(KafkaBroker broker) {
        try {
            connector = JMXConnectorFactory.connect(
                    new JMXServiceURL("service:jmx:rmi:///jndi/rmi://127.0.0.1:" + broker.jmxPort() + "/jmxrmi"));
            server = connector.getMBeanServerConnection();
        } catch (IOException failure) {
            throw new HarnessException("the broker's MBeans cannot be reached: " + failure.getMessage(), failure);
        }
    }

    /** The value of an attribute of `io.alluvium:type=PART`; empty when there is no such MBean or attribute. */
    OptionalDouble read(String part, String attribute) {
        try {
            Set<ObjectName> names = server.queryNames(new ObjectName("io.alluvium:type=" + part + ",*"), null);
            for (ObjectName name : names) {
                Object value = valueOf(name, attribute);
                if (value instanceof Number number) {
                    return OptionalDouble.of(number.doubleValue());
                }
            }
            return OptionalDouble.empty();
        } catch (MalformedObjectNameException failure) {
            throw new HarnessException("not a name of an MBean part: " + part, failure);
        } catch (IOException failure) {
            throw new HarnessException("the broker's MBeans cannot be read: " + failure.getMessage(), failure);
        }
    }

    private Object valueOf(ObjectName name, String attribute) throws IOException {
        try {
            return server.getAttribute(name, attribute);
        } catch (AttributeNotFoundException absent) {
            return null;
        } catch (JMException failure) {
            throw new HarnessException("MBean " + name + " does not give " + attribute, failure);
        }
    }

    @Override
    public void close() {
        try {
            connector.close();
        } catch (IOException alreadyGone) {
            // The broker may have ended before us: then there is nothing left to close.
        }
    }
}

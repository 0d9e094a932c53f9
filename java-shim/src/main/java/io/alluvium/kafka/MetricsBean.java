package io.alluvium.kafka;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import javax.management.Attribute;
import javax.management.AttributeList;
import javax.management.AttributeNotFoundException;
import javax.management.DynamicMBean;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanException;
import javax.management.MBeanInfo;

/** The metrics of one part of the library; every query reads one snapshot. */
final class MetricsBean implements DynamicMBean {
    private final long engine;
    private final int valueCount;
    private final Map<String, Metric> metrics = new LinkedHashMap<>();
    private final MBeanInfo info;

    /** {@code valueCount}: how many values a snapshot has, over all parts. */
    MetricsBean(long engine, int valueCount, String part, List<Metric> described) {
        this.engine = engine;
        this.valueCount = valueCount;
        MBeanAttributeInfo[] attributes = new MBeanAttributeInfo[described.size()];
        for (int at = 0; at < attributes.length; at++) {
            Metric metric = described.get(at);
            metrics.put(metric.name, metric);
            String help = metric.help + " (" + metric.kind + ", " + metric.unit + ")";
            attributes[at] = new MBeanAttributeInfo(metric.name, "long", help, true, false, false);
        }
        this.info = new MBeanInfo(MetricsBean.class.getName(), "Alluvium: " + part, attributes, null, null, null);
    }

    @Override
    public Object getAttribute(String name) throws AttributeNotFoundException, MBeanException {
        Metric metric = metrics.get(name);
        if (metric == null) {
            throw new AttributeNotFoundException(name);
        }
        return snapshot()[metric.index];
    }

    @Override
    public AttributeList getAttributes(String[] names) {
        AttributeList found = new AttributeList();
        try {
            long[] values = snapshot();
            for (String name : names) {
                Metric metric = metrics.get(name);
                if (metric != null) {
                    found.add(new Attribute(name, values[metric.index]));
                }
            }
        } catch (MBeanException closed) {
            // The contract: attributes that cannot be had are left out.
        }
        return found;
    }

    private long[] snapshot() throws MBeanException {
        long[] values = new long[valueCount];
        try {
            Native.metrics(engine, values);
        } catch (NativeException failure) {
            // A client far away does not have our class.
            throw new MBeanException(new IllegalStateException(failure.getMessage()));
        }
        return values;
    }

    @Override
    public void setAttribute(Attribute attribute) throws AttributeNotFoundException {
        throw new AttributeNotFoundException("metrics are read-only: " + attribute.getName());
    }

    @Override
    public AttributeList setAttributes(AttributeList attributes) {
        return new AttributeList();
    }

    @Override
    public Object invoke(String action, Object[] arguments, String[] signature) {
        throw new UnsupportedOperationException("metrics have no operations: " + action);
    }

    @Override
    public MBeanInfo getMBeanInfo() {
        return info;
    }

    static final class Metric {
        /** Where the snapshot has its value. */
        private final int index;
        private final String name;
        private final String unit;
        private final String kind;
        private final String help;

        Metric(int index, String name, String unit, String kind, String help) {
            this.index = index;
            this.name = name;
            this.unit = unit;
            this.kind = kind;
            this.help = help;
        }
    }
}

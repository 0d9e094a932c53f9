package org.gradle.internal.installation;

import java.io.File;
import java.net.URISyntaxException;

/**
 * Takes the place of a class of Debian's Gradle that answers {@code /usr/share/gradle} whatever the launcher:
 * the installation is where this class's own jar is, so that a private copy of the distribution finds itself.
 */
abstract class CurrentGradleInstallationLocator {
    private CurrentGradleInstallationLocator() {}

    public static CurrentGradleInstallation locate() {
        return locateViaClass(CurrentGradleInstallationLocator.class);
    }

    static CurrentGradleInstallation locateViaClass(Class<?> contained) {
        try {
            File jar = new File(contained.getProtectionDomain().getCodeSource().getLocation().toURI());
            return new CurrentGradleInstallation(new GradleInstallation(jar.getParentFile().getParentFile()));
        } catch (URISyntaxException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}

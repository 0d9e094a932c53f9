package io.alluvium.e2e;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;

/**
 * Ports that the operating system calls free, for programs that cannot choose one themselves.
 *
 * <p>Another process may take such a port before it is used; who starts a program with one tries again with another.
 */
final class FreePort {
    private FreePort() {
    }

    static int one() {
        return several(1).get(0);
    }

    /** Different ports: all are held until the last is known. */
    static List<Integer> several(int count) {
        List<ServerSocket> sockets = new ArrayList<>();
        List<Integer> ports = new ArrayList<>();
        try {
            for (int index = 0; index < count; index++) {
                ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
                sockets.add(socket);
                ports.add(socket.getLocalPort());
            }
            return ports;
        } catch (IOException failure) {
            throw new UncheckedIOException("no free port on the loopback interface", failure);
        } finally {
            for (ServerSocket socket : sockets) {
                closeQuietly(socket);
            }
        }
    }

    private static void closeQuietly(ServerSocket socket) {
        try {
            socket.close();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}

"""A proxy between clients and servers that imitates a faulty network."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle

PIECE = 1 << 14  # bytes that it forwards at once


class Proxy:
    """A proxy between clients and servers that imitates a faulty network.

    As a Service does, it connects each client to one of the servers that are up.

    Attributes:
        delay_s: Delay of each piece.
        bytes_per_s: Bandwidth in each direction of each connection; None: unlimited.
        connections: Number of connections so far.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = cycle((host, int(port)) for host, _, port in (each.rpartition(":") for each in targets))
        self._tries = len(targets)
        self._passing = threading.Event()  # a connection keeps its first event
        self._passing.set()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host_port = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for each in (end for pair in pairs for end in pair):
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def half_close(self) -> None:
        """Close the direction towards the clients of all connections; the other one stays open."""
        with self._lock:
            pairs = set(self._pairs)
        for client, _ in pairs:
            with suppress(OSError):
                client.shutdown(socket.SHUT_WR)

    def stall(self) -> None:
        """Forward nothing, without closing connections."""
        self._passing.clear()

    def stall_for_good(self) -> None:
        """Forward nothing on open connections; new connections work."""
        self._passing.clear()
        self._passing = threading.Event()
        self._passing.set()

    def heal(self) -> None:
        """Forward everything at once."""
        self.delay_s, self.bytes_per_s = 0.0, None
        self._passing.set()

    def close(self) -> None:
        self._listener.close()
        self.heal()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._server()
            if server is None:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.add((client, server))
            self.connections += 1
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink, (client, server)), daemon=True).start()

    def _server(self) -> socket.socket | None:
        for _ in range(self._tries):
            with suppress(OSError):
                server = socket.create_connection(next(self._targets), 2)
                server.settimeout(None)
                return server
        return None

    def _pass_on(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        passing = self._passing
        try:
            while data := source.recv(PIECE):
                passing.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                sink.sendall(data)
        except OSError:
            pass
        with self._lock:
            self._pairs.discard(pair)
        for each in pair:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

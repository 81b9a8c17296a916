"""The part of a kubelet that serves logs to the API server. No container runs."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from urllib.parse import urlsplit

import trustme

Logs = dict[str, "Queue[str | None]"]
"""The lines of each pod, by its name, or of `pod/container`; None ends the log."""


def said(*lines: str | None) -> "Queue[str | None]":
    """Return these lines, before more."""
    queue: Queue[str | None] = Queue()
    for line in lines:
        queue.put(line)
    return queue


@contextmanager
def serving(logs: Logs) -> Iterator[int]:
    """Serve logs, each line once; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            pod, container = urlsplit(self.path).path.split("/")[3:]  # /containerLogs/NAMESPACE/POD/CONTAINER
            lines = logs.get(f"{pod}/{container}") or logs[pod]
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while (line := lines.get()) is not None:
                data = f"{line}\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True  # connections that the API server keeps open
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

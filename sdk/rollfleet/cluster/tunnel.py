"""A port of this machine that leads to a port of a pod, through the API server."""

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, Final

from rollfleet.cluster.api import TIMEOUT_S, ClusterApi
from rollfleet.cluster.refusals import tunnel_refused
from rollfleet.errors import ClusterError

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 18
_LOOK_S: Final = 0.5
_DATA: Final = b"\0"
"""The channel of a port's data. Channel 1 has its error. Each message begins with its channel."""


class Tunnel:
    """A listening socket on the loopback interface. Each connection to it gets a new stream to a port of a pod.

    A stream that breaks closes its connection: the client connects again, and gets another stream.

    Args:
        api: A client of the cluster, with the rights of the user.
        namespace: The namespace of the pods.
        pods: Returns the names of the pods, one at least, or raises ClusterError. Any will do: the first one that
            answers is taken.
        port: Their port.
        timeout_s: How long to wait for one that answers.

    Attributes:
        port: The port of this machine.

    Raises:
        ClusterError: No pod can be reached in time, or the user may not forward its port.
    """

    def __init__(
        self, api: ClusterApi, namespace: str, pods: Callable[[], Sequence[str]], port: int, *, timeout_s: float = 0.0
    ) -> None:
        self._api, self._namespace, self._pods, self._port = api, namespace, pods, port
        until = time.monotonic() + timeout_s
        while not self._answers(last=time.monotonic() >= until):  # raises before anything listens
            time.sleep(_LOOK_S)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="rollfleet-tunnel", daemon=True).start()

    def close(self) -> None:
        """Listen no more. Connections end with their clients. Closing twice is harmless."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._carry, args=(client,), name="rollfleet-tunnel", daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with closing(client):
            try:
                stream = self._open()
            except ClusterError as error:
                log.debug("no stream to %s/%s: %s", self._namespace, self._pods, error)
                return
            back = threading.Thread(target=_receive, args=(stream, client), name="rollfleet-tunnel", daemon=True)
            back.start()
            with _broken():
                while data := client.recv(_CHUNK_BYTES):
                    stream.send_binary(_DATA + data)
            with _broken():
                stream.abort()  # wakes the other thread
            back.join()
            stream.shutdown()

    def _answers(self, *, last: bool) -> bool:
        try:
            self._open().shutdown()
        except ClusterError as error:
            if last or error.reason == "Forbidden":
                raise
            return False
        return True

    def _open(self) -> Any:
        """Return a WebSocket to the first pod that answers."""
        from kubernetes.stream.ws_client import get_websocket_url
        from websocket import WebSocketException

        configuration, refusals = self._api.client.configuration, list[ClusterError]()
        for pod in self._pods():
            url = f"{configuration.host}/api/v1/namespaces/{self._namespace}/pods/{pod}/portforward"
            try:
                return _websocket(configuration, get_websocket_url(url, [("ports", str(self._port))]))
            except (WebSocketException, OSError) as error:
                refusals.append(tunnel_refused(error, self._namespace, pod))
        raise refusals[0]  # that pod exists, if any does


def _websocket(configuration: Any, url: str) -> Any:
    """Open a WebSocket, as `create_websocket` of the official client does, which has no timeout."""
    from kubernetes.stream.ws_client import V4_CHANNEL_PROTOCOL, websocket_proxycare
    from websocket import WebSocket

    tls = {
        "cert_reqs": ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE,
        "ca_certs": configuration.ssl_ca_cert,
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    token = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    headers = [f"sec-websocket-protocol: {V4_CHANNEL_PROTOCOL}", *([f"authorization: {token}"] if token else [])]
    options = {"header": headers, "timeout": TIMEOUT_S}
    if configuration.proxy or configuration.proxy_headers:
        options = websocket_proxycare(options, configuration, url, {})
    stream: Any = WebSocket(sslopt=tls)
    stream.connect(url, **options)
    stream.settimeout(None)
    return stream


def _receive(stream: Any, client: socket.socket) -> None:
    """Write what comes from the pod to the client, until one of them ends."""
    begun: set[bytes] = set()
    with _broken():
        while data := stream.recv():
            channel = data[:1]
            if channel not in begun:  # its first message is the number of the port
                begun.add(channel)
            elif channel == _DATA:
                client.sendall(memoryview(data)[1:])
            else:
                log.debug("the pod closed its port: %s", data[1:])
                break
    with _broken():
        client.shutdown(socket.SHUT_RDWR)  # wakes the other thread


def _broken() -> "suppress":
    """Ignore that one side is gone: the other one is then closed."""
    from websocket import WebSocketException

    return suppress(OSError, WebSocketException)

"""A tunnel through a real API server to a server behind a kubelet."""

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest
from tests.control.kubernetes import ApiServer
from tests.sdk.cluster.forwarding_node import ForwardingNode
from tests.sdk.cluster.namespace import Namespace

from rollfleet.cluster import tunnel
from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.tunnel import Tunnel
from rollfleet.errors import ClusterError

PODS = ["nats-0", "nats-1"].copy  # their names
OTHER_TOKEN = "of-user-other"  # the server's user without rights
LARGE = bytes(range(256)) * (1 << 13)


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)


@pytest.fixture
def node(namespace: Namespace) -> Iterator[ForwardingNode]:
    """A node whose pods answer each connection with the same bytes, as an echo."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        node = ForwardingNode(namespace, server.server_address[1])
        yield node
        node.stop()
        server.shutdown()


def exchange(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        found = b""
        while len(found) < len(data) and (more := client.recv(1 << 20)):
            found += more
        sender.join()
        return found


def test_bytes_pass_through_the_first_pod_that_answers_also_after_a_cut(api: ClusterApi, node: ForwardingNode) -> None:
    node.add_pod("nats-1")
    tunnel = Tunnel(api, api.namespace, PODS, 4222)
    try:
        assert exchange(tunnel.port, LARGE) == LARGE
        with socket.create_connection(("127.0.0.1", tunnel.port), timeout=30) as client:
            client.sendall(b"a")
            assert client.recv(1) == b"a"
            node.cut()
            assert client.recv(1) == b"", "the client hears of the cut"
        assert exchange(tunnel.port, b"again") == b"again"
    finally:
        tunnel.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", tunnel.port), timeout=5)


def test_an_api_server_that_does_not_answer_is_an_error(api: ClusterApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api.client.configuration.host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"nats-0 can be forwarded: .*timed out"):
            tunnel.Tunnel(api, api.namespace, PODS, 4222)


def test_a_missing_pod_and_a_missing_right_are_named(api_server: ApiServer, api: ClusterApi) -> None:
    missing = f"no port of Pod {api.namespace}/nats-0 can be forwarded: Handshake status 404"
    with pytest.raises(ClusterError, match=missing):
        Tunnel(api, api.namespace, PODS, 4222)
    other = ClusterApi(kubeconfig=api_server.kubeconfig(OTHER_TOKEN), namespace=api.namespace)
    role = f"the ClusterRole rollfleet-user in namespace {api.namespace}"
    forbidden = f"you may not forward a port of Pod {api.namespace}/nats-0: ask the cluster's administrators for {role}"
    with pytest.raises(ClusterError, match=forbidden):
        Tunnel(other, api.namespace, PODS, 4222)


def test_pods_that_come_late_are_waited_for(api: ClusterApi, node: ForwardingNode) -> None:
    threading.Timer(0.5, node.add_pod, ["nats-1"]).start()
    tunnel = Tunnel(api, api.namespace, PODS, 4222, timeout_s=30)
    assert exchange(tunnel.port, b"there") == b"there"
    tunnel.close()

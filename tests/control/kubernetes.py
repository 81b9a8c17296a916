"""A real API server with etcd, on free ports of this machine."""

import asyncio
import base64
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp
import kopf
import pytest
import yaml
from crds.crd import crd
from tests.control.chart.helm import find
from tests.ports import free_ports
from tests.waiting import wait_until

from rollfleet_api.job import KIND
from rollfleet_operator import deep_json
from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest

PROGRAMS = ("etcd", "kube-apiserver")
ABSENT = (
    "no API server: put etcd and kube-apiserver (as `setup-envtest use` of controller-runtime downloads them) on the "
    "PATH, or into a folder that KUBEBUILDER_ASSETS names"
)
TOKEN = "secret-of-the-tests"
KEY = "rollfleet-key"  # the Secret with an installation's key
OTHER, OTHER_TOKEN = "other", "of-user-other"  # who has the rights that a test gives; what it asks for is written down
RBAC = "rbac.authorization.k8s.io"
AUDIT_LOG = "audit.log"
AUDITED = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [OTHER]}, {"level": "None"}],
}
START_S = 60.0
WAIT_S = 30.0
T = TypeVar("T")


class ApiServer:
    """etcd and kube-apiserver, and a loop in which whatever speaks to them runs.

    Attributes:
        url: Where it listens.
        folder: Its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        etcd_port, peer_port, port = free_ports(3)
        self.url = f"https://127.0.0.1:{port}"
        etcd = f"http://127.0.0.1:{etcd_port}"
        (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n{OTHER_TOKEN},{OTHER},{OTHER}\n")
        (folder / "audit.yaml").write_text(yaml.safe_dump(AUDITED))
        key = folder / "service-accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self._processes = [
            self._start(
                "etcd",
                "--unsafe-no-fsync",
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            ),
            self._start(
                "kube-apiserver",
                f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={folder}",
                f"--token-auth-file={folder / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--disable-admission-plugins=ServiceAccount",
                "--service-account-issuer=https://127.0.0.1",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.0.0.0/16",
                "--profiling=false",
                f"--audit-policy-file={folder / 'audit.yaml'}",
                f"--audit-log-path={folder / AUDIT_LOG}",
            ),
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._wait_ready()
        self.api = self.call(self._connect())

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = find(program)
        assert path is not None
        with (self.folder / f"{program}.log").open("wb") as log:
            return subprocess.Popen([path, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _wait_ready(self) -> None:
        """Its certificate is there before it can answer."""
        until = time.monotonic() + START_S
        while not self.call(self._ready()):
            dead = [each.args for each in self._processes if each.poll() is not None]
            if dead or time.monotonic() > until:
                logs = {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.log")}
                pytest.fail(f"the API server did not start: {dead} {logs}")
            time.sleep(0.1)

    async def _ready(self) -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(self.url + "/readyz", ssl=False) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def _connect(self) -> Api:
        return Api(self.login)

    def login(self, token: str = TOKEN) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=self.url, ca_path=str(self.folder / "apiserver.crt"), token=token)

    def kubeconfig(self, token: str = TOKEN) -> Path:
        """The same as a file, for programs."""
        ca = base64.b64encode((self.folder / "apiserver.crt").read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self.folder / f"kubeconfig-{token}"
        path.write_text(yaml.safe_dump(config))
        return path

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 30.0) -> T:
        return self.begin(work).result(timeout_s)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        token: str = TOKEN,
    ) -> Manifest:
        """Send a request, as an administrator unless a token is given. A body that is text is sent as it is.

        Raises:
            ApiError: The server refuses it.
        """
        login, known = self.login(token), {key: value for key, value in (query or {}).items() if value}
        sent = body if body is None or isinstance(body, str) else json.dumps(body)
        host_port, headers = self.url.removeprefix("https://"), login.as_http_headers() | {"Content-Type": content_type}
        with closing(HTTPSConnection(host_port, context=login.as_ssl_context(), timeout=WAIT_S)) as connection:
            connection.request(method, f"{path}?{urlencode(known)}", sent, headers)
            answer = connection.getresponse()
            found: Manifest = deep_json.loads(answer.read())
        if answer.status >= 400:
            raise ApiError(answer.status, found.get("reason", ""), found["message"])
        return found

    def grant(self, user: str, namespace: str, *rules: Manifest, role: str = "") -> Callable[[], None]:
        """Let a user do what rules allow, or a ClusterRole, in a namespace (empty: in all); return what revokes it."""
        base = f"/apis/{RBAC}/v1/" + (f"namespaces/{namespace}/" if namespace else "cluster")
        name, kind = uuid.uuid4().hex, "Role" if namespace and not role else "ClusterRole"
        reference = {"apiGroup": RBAC, "kind": kind, "name": role or name}
        subject = {"apiGroup": RBAC, "kind": "User", "name": user}
        bodies: dict[str, Manifest] = {
            "roles": {"rules": [*rules]},
            "rolebindings": {"roleRef": reference, "subjects": [subject]},
        }
        if role:
            del bodies["roles"]
        for plural, body in bodies.items():
            self.request("POST", base + plural, {"metadata": {"name": name}, **body})

        def revoke() -> None:
            for plural in bodies:
                self.request("DELETE", f"{base}{plural}/{name}")

        return revoke

    def stop(self) -> None:
        self.call(self.api.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for process in reversed(self._processes):
            process.terminate()
            process.wait(20)


def serve_definition(server: ApiServer) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    server.request("POST", path, dict(crd()))
    server.request("POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": KEY}})
    wait_until(lambda: _served(server))


def _served(server: ApiServer) -> bool:
    try:
        server.call(server.api.list(KIND))
    except Exception:
        return False
    return True

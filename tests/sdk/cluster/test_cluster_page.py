"""`kubectl rollfleet ui`: the operator's page through a real API server, with the user's own token."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.cookiejar import CookieJar
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
import yaml
from tests.api.job_data import job_data
from tests.control.api_server.lab import RunningOperator, quick
from tests.control.api_server.viewer import account_token
from tests.control.chart.helm import Helm
from tests.control.kubernetes import ApiServer
from tests.control.pure.nats_in_memory import NatsInMemory
from tests.ports import free_ports
from tests.sdk.cluster.forwarding_node import ForwardingNode
from tests.sdk.cluster.kubeconfigs import kubeconfig_with
from tests.sdk.cluster.namespace import Namespace
from tests.waiting import wait_until

from rollfleet import Jobs
from rollfleet.cli.cluster_page import OperatorPort, bearer, show_cluster
from rollfleet.cluster.api import ClusterApi
from rollfleet.errors import ClusterError
from rollfleet_api.kubernetes_names import OPERATORS

LABELS = dict(each.split("=") for each in OPERATORS.split(","))


class Installation:
    """An operator with a page, in pods on nodes of a test.

    Attributes:
        namespace: Its namespace, which has a job.
    """

    def __init__(self, server: ApiServer, api: ClusterApi, namespace: Namespace) -> None:
        self._server, self._api, self._namespace = server, api, namespace
        self._operators: list[RunningOperator] = []
        self._nodes: list[ForwardingNode] = []
        self._nats = NatsInMemory()
        (self._port,) = free_ports(1)
        self.namespace = api.namespace

    def start(self) -> None:
        settings = quick(namespaces=(self.namespace,), ui_port=self._port)
        self._operators.append(RunningOperator(self._server, self._nats, settings))

    def stop(self) -> None:
        self._operators.pop().stop()

    def add_pod(self, name: str, *, listens: bool = True) -> None:
        """Add a pod of the operator; one that waits for its turn does not listen."""
        node = ForwardingNode(self._namespace, self._port if listens else free_ports(1)[0])
        node.add_pod(name, LABELS)
        self._nodes.append(node)

    def remove_pod(self, name: str) -> None:
        self._api.delete("Pod", self.namespace, name)
        while self._nodes:
            self._nodes.pop().stop()

    def clear(self) -> None:
        for operator in self._operators:
            operator.stop()
        for node in self._nodes:
            node.stop()


@pytest.fixture
def installation(api_server: ApiServer, api: ClusterApi, namespace: Namespace, jobs: Jobs) -> Iterator[Installation]:
    jobs.submit(job_data())
    installation = Installation(api_server, api, namespace)
    installation.start()
    installation.add_pod("rollfleet-7d4b9c-first")
    yield installation
    installation.clear()


@pytest.fixture(scope="module")
def page_rules(repository: Path) -> list[Any]:
    shown = Helm(repository / "charts/rollfleet").render(ui__enabled=True)
    return list(shown.of("Role")["rollfleet-ui"]["rules"])


@pytest.fixture
def user(api_server: ApiServer, namespace: Namespace, page_rules: list[Any], tmp_path: Path) -> Path:
    """The kubeconfig of a user with the chart's Role for the page, who may list the jobs of the namespace."""
    token = account_token(api_server, namespace.name, "alice")
    jobs = {"apiGroups": ["rollfleet.dev"], "resources": ["collectorjobs"], "verbs": ["get", "list"]}
    alice = {"kind": "ServiceAccount", "name": "alice", "namespace": namespace.name}
    namespace.grant("page", [*page_rules, jobs], alice)
    return kubeconfig_with(api_server, tmp_path / "kubeconfig", user={"token": token})


class Browser:
    """A browser that opened the printed URL."""

    def __init__(self, url: str) -> None:
        self.base = re.sub(r"/\?token=.*", "", url)
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self.index = self.open(url)

    def open(self, url: str) -> tuple[int, bytes]:
        try:
            with self._opener.open(url, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def get(self, path: str) -> tuple[int, Any]:
        status, body = self.open(self.base + path)
        return status, json.loads(body)


@contextmanager
def command(**options: Any) -> Iterator[str]:
    """The command runs; the URL that it printed."""
    printed: Queue[Any] = Queue()
    loop = asyncio.new_event_loop()
    defaults = {"namespace": None, "port": 0, "token": None, "context": None, "kubeconfig": None}
    work = loop.create_task(show_cluster(printed.put, **defaults | options))

    def run() -> None:
        with suppress(asyncio.CancelledError):
            try:
                loop.run_until_complete(work)
            except ClusterError as error:
                printed.put(error)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = Thread(target=run)
    thread.start()
    try:
        line = printed.get(timeout=60)
        if isinstance(line, ClusterError):
            raise line
        yield line.partition(": ")[2]
    finally:
        if not work.done():
            loop.call_soon_threadsafe(work.cancel)
        thread.join()


def test_a_user_sees_the_page_of_the_cluster(installation: Installation, user: Path) -> None:
    with command(kubeconfig=user, namespace=installation.namespace) as url:
        browser = Browser(url)
        status, index = browser.index
        assert status == 200
        assert b"<html" in index
        wait_until(lambda: len(browser.get("/api/v1/jobs")[1]) == 1)
        (row,) = browser.get("/api/v1/jobs")[1]
        assert row["key"] == f"{installation.namespace}/cartpole"
        assert browser.get(f"/api/v1/jobs/{row['key']}")[1]["row"]["key"] == row["key"]
        assert browser.get("/api/v1/jobs/default/x")[0] == 403
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(browser.base + "/api/v1/jobs", timeout=30)


def test_the_page_goes_on_when_the_operator_is_replaced(installation: Installation, user: Path) -> None:
    with command(kubeconfig=user, namespace=installation.namespace) as url:
        browser = Browser(url)
        wait_until(lambda: len(browser.get("/api/v1/jobs")[1]) == 1)
        installation.stop()
        installation.remove_pod("rollfleet-7d4b9c-first")
        status, answer = browser.get("/api/v1/jobs")
        assert status == 502
        assert "no operator in namespace" in answer["error"]
        installation.start()
        installation.add_pod("rollfleet-7d4b9c-second")
        wait_until(lambda: browser.get("/api/v1/jobs")[0] == 200)


def test_an_operator_that_waits_for_its_turn_is_passed_over(installation: Installation, user: Path) -> None:
    installation.add_pod("rollfleet-7d4b9c-waits", listens=False)
    with command(kubeconfig=user, namespace=installation.namespace) as url:
        assert Browser(url).index[0] == 200


def test_a_missing_page_is_explained(api_server: ApiServer, api: ClusterApi, namespace: Namespace, user: Path) -> None:
    none = r"no operator in namespace \S+ serves the page: .* `ui.enabled=true`"
    with pytest.raises(ClusterError, match=none), command(kubeconfig=user, namespace=api.namespace):
        pass
    off = Installation(api_server, api, namespace)
    off.add_pod("rollfleet-7d4b9c-first", listens=False)
    with pytest.raises(ClusterError, match=none), command(kubeconfig=user, namespace=api.namespace):
        pass
    off.clear()


def test_a_missing_right_is_named(installation: Installation, api_server: ApiServer, user: Path) -> None:
    other = api_server.kubeconfig("of-user-other")
    missing = r"you may not reach the operator: ask .* for the Role rollfleet-ui in "
    with pytest.raises(ClusterError, match=missing), command(kubeconfig=other, namespace=installation.namespace):
        pass


def test_a_certificate_needs_a_token_beside_it(
    installation: Installation, api_server: ApiServer, user: Path, tmp_path: Path
) -> None:
    nameless = kubeconfig_with(api_server, tmp_path / "certificate", user={"token": None})
    with pytest.raises(ClusterError, match=r"no token.*--token \"\$\(kubectl create token NAME\)\""):
        bearer(ClusterApi(kubeconfig=nameless))
    token = yaml.safe_load(user.read_text())["users"][0]["user"]["token"]
    options = {"kubeconfig": api_server.kubeconfig(), "namespace": installation.namespace}
    with command(**options, token=token) as url:
        browser = Browser(url)
        assert browser.get("/api/v1/jobs/default/x")[0] == 403, "the token's rights, not the kubeconfig's"
    with (
        pytest.raises(ClusterError, match=r"HTTP 401.*the cluster does not accept your token"),
        command(**options, token="wrong"),
    ):
        pass


def test_a_token_of_a_plugin_is_renewed(api_server: ApiServer, tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    program.write_text(
        "#!/bin/sh\n"
        f'echo x >> "{tmp_path}/calls"\n'
        f'count=$(wc -l < "{tmp_path}/calls")\n'
        'printf \'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": '
        '{"token": "token-%s", "expirationTimestamp": "2020-01-01T00:00:00Z"}}\' $count\n'
    )
    program.chmod(0o755)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    user = {"token": None, "exec": plugin}
    authorization = bearer(ClusterApi(kubeconfig=kubeconfig_with(api_server, tmp_path / "kubeconfig", user=user)))
    first, second = authorization(), authorization()
    assert first.startswith("Bearer token-")
    assert first != second


async def test_many_requests_share_a_tunnel(installation: Installation, user: Path) -> None:
    api = ClusterApi(kubeconfig=user)
    headers = {"Authorization": bearer(api)()}
    async with OperatorPort(api, installation.namespace) as port:

        async def ask() -> int:
            return (await port.get("/api/v1/jobs", headers)).status

        assert await asyncio.gather(*(ask() for _ in range(8))) == [200] * 8

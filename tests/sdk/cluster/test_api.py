"""Requests to a real API server, and its refusals as one line with what to write."""

import base64
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import incluster_config
from tests.control.kubernetes import ApiServer
from tests.sdk.cluster.kubeconfigs import kubeconfig_with
from tests.sdk.cluster.namespace import Namespace

from rollfleet.cluster.api import ClusterApi
from rollfleet.errors import ClusterError

OTHER_TOKEN = "of-user-other"  # the server's user without rights


def config_map(namespace: str, name: str = "files", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def test_an_object_is_created_read_changed_listed_and_deleted(api: ClusterApi) -> None:
    assert api.get("ConfigMap", api.namespace, "files") is None
    created = api.create(config_map(api.namespace, a="1"))
    assert created["metadata"]["uid"]
    assert api.patch("ConfigMap", api.namespace, "files", {"data": {"b": "2"}})["data"] == {"a": "1", "b": "2"}
    assert api.apply(config_map(api.namespace, a="3"))["data"] == {"a": "3", "b": "2"}
    listed = api.list("ConfigMap", api.namespace, fields="metadata.name=files").items
    assert [each["metadata"]["name"] for each in listed] == ["files"]
    assert api.delete("ConfigMap", api.namespace, "files") is True
    assert api.delete("ConfigMap", api.namespace, "files") is False
    assert api.version().startswith("v1.")


def test_a_watch_yields_the_changes_after_a_list(api: ClusterApi) -> None:
    before = api.list("ConfigMap", api.namespace).resource_version
    api.create(config_map(api.namespace))
    changes = api.watch("ConfigMap", api.namespace, before, fields="metadata.name=files")
    assert next(changes)[0] == "ADDED"
    api.patch("ConfigMap", api.namespace, "files", {"data": {"b": "2"}})
    kind, found = next(changes)
    assert (kind, found["data"]) == ("MODIFIED", {"b": "2"})
    api.delete("ConfigMap", api.namespace, "files")
    assert next(changes)[0] == "DELETED"
    changes.close()  # type: ignore[attr-defined]


def test_a_conflict_says_to_repeat_the_change(api: ClusterApi) -> None:
    old = api.create(config_map(api.namespace))["metadata"]["resourceVersion"]
    api.patch("ConfigMap", api.namespace, "files", {"data": {"a": "1"}})
    with pytest.raises(ClusterError, match="repeat the change") as refused:
        api.patch("ConfigMap", api.namespace, "files", {"metadata": {"resourceVersion": old}, "data": {"a": "2"}})
    assert refused.value.reason == "Conflict"
    with pytest.raises(ClusterError, match='"files" already exists; write another name'):
        api.create(config_map(api.namespace))


def test_a_missing_right_is_named_with_the_role_that_gives_it(api_server: ApiServer, namespace: Namespace) -> None:
    api = ClusterApi(kubeconfig=api_server.kubeconfig(OTHER_TOKEN), namespace=namespace.name)
    with pytest.raises(ClusterError) as refused:
        api.get("Secret", api.namespace, "cartpole-learner-nats")
    assert str(refused.value) == (
        f"you may not get Secret {namespace.name}/cartpole-learner-nats: "
        "ask the cluster's administrators for the ClusterRole rollfleet-user"
    )
    with pytest.raises(ClusterError, match="you may not list CollectorJobs in all namespaces"):
        api.list("CollectorJob", None)
    with pytest.raises(ClusterError, match="you may not get Pod/log"):
        list(api.logs(api.namespace, "cartpole-0"))


def test_a_quota_is_reported_in_the_api_servers_words(api: ClusterApi, namespace: Namespace) -> None:
    namespace.limit({"count/configmaps": "0"})

    def create() -> None:
        for index in range(1000):  # until the API server's admission has seen the quota
            api.create(config_map(api.namespace, f"files-{index}"))

    with pytest.raises(ClusterError, match=r"exceeded quota: limit.*; request less") as refused:
        create()
    assert refused.value.reason == "Forbidden"


PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}
WRONG: dict[str, tuple[dict[str, dict[str, object]], str]] = {
    "an unknown authority": ({"cluster": {"certificate-authority-data": None}}, "certificate"),
    "wrong credentials": ({"user": {"token": "of-nobody"}}, "log in again"),
    "a missing plugin": (
        {"user": {"token": None, "exec": PLUGIN}},
        r"no credentials: .* its plugin \(`exec`\) did not run",
    ),
    "no server": (
        {"cluster": {"server": "https://127.0.0.1:1"}},
        r"^the cluster at https://127\.0\.0\.1:1 cannot be reached: (?!.*object at).*refused; "
        r"check the network, or name another context$",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_kubeconfig_of_what_does_not_work_is_explained(wrong: str, api_server: ApiServer, tmp_path: Path) -> None:
    changes, message = WRONG[wrong]
    file = kubeconfig_with(api_server, tmp_path / "config", **changes)
    with pytest.raises(ClusterError, match=message):
        ClusterApi(kubeconfig=file).list("Pod", None)


def test_the_first_file_of_kubeconfig_that_is_there_counts_and_a_broken_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api_server: ApiServer
) -> None:
    (tmp_path / "broken").write_text("a: [")
    with pytest.raises(ClusterError, match="broken cannot be used") as refused:
        ClusterApi(kubeconfig=tmp_path / "broken")
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["/nowhere", str(api_server.kubeconfig())]))
    assert ClusterApi().namespace == "default"


@pytest.mark.parametrize("current", ["gone", "", None])
def test_a_named_context_needs_no_current_one(api_server: ApiServer, tmp_path: Path, current: str | None) -> None:
    config = yaml.safe_load(api_server.kubeconfig().read_text()) | {"current-context": current}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    assert ClusterApi(kubeconfig=tmp_path / "config", context="x").version().startswith("v1.")
    with pytest.raises(ClusterError, match=r"config cannot be used: .*context"):
        ClusterApi(kubeconfig=tmp_path / "config")


def test_a_pod_uses_its_account_and_its_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api_server: ApiServer, namespace: Namespace
) -> None:
    config = yaml.safe_load(api_server.kubeconfig().read_text())
    (tmp_path / "token").write_text(config["users"][0]["user"]["token"])
    (tmp_path / "namespace").write_text(namespace.name)
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    host, port = api_server.url.removeprefix("https://").split(":")
    for name, value in (("HOME", tmp_path), ("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    api = ClusterApi()
    assert api.namespace == namespace.name
    assert api.list("Pod", api.namespace).items == []


@pytest.mark.parametrize("content", [b"Content-Length: 100\r\n\r\n{", b"Content-Length: 6\r\n\r\n<html>"])
def test_an_answer_that_is_cut_or_no_json_is_an_error_of_the_connection(
    tmp_path: Path, api_server: ApiServer, content: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client = server.accept()[0]
            with client:
                client.recv(1 << 16)
                client.sendall(b"HTTP/1.1 200 OK\r\n" + content)

        thread = threading.Thread(target=answer)
        thread.start()
        cluster = {"server": f"http://127.0.0.1:{server.getsockname()[1]}"}
        file = kubeconfig_with(api_server, tmp_path / "config", cluster=cluster)
        with pytest.raises(ClusterError, match="cannot be reached") as failed:
            ClusterApi(kubeconfig=file).list("Pod", None)
        assert failed.value.reason == "Unreachable"
        thread.join()

"""Plays the Job controller, the garbage collector and the kubelet of a namespace: its pods run as processes."""

import base64
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient, ApiException, BatchV1Api, CoreV1Api, CustomObjectsApi
from tests.ports import free_ports
from tests.sdk.cluster.forwarding_node import ForwardingNode
from tests.sdk.cluster.namespace import Namespace

from rollfleet_api import address
from rollfleet_api.env_servers import CERTIFICATE, CERTIFICATE_FILE
from rollfleet_api.kubernetes_names import ROLE_LABEL
from rollfleet_api.permissions import Role

LOOK_S = 0.1
OWN = "batch.kubernetes.io/job-completion-index"


class Kubelet:
    """Runs workers and environment servers of all jobs of a namespace, with the files and variables of their pods.

    Attributes:
        missing_images: Images that cannot be pulled.
        workers: The running processes, by Kubernetes Job and index.
    """

    def __init__(self, admin: ApiClient, namespace: Namespace, folder: Path) -> None:
        self.missing_images: set[str] = set()
        self.workers: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._core, self._batch, self._custom = CoreV1Api(admin), BatchV1Api(admin), CustomObjectsApi(admin)
        self._client, self._namespace, self._folder = admin, namespace.name, folder
        self._node, self._nodes = partial(ForwardingNode, namespace), list[ForwardingNode]()
        self._pods: dict[tuple[str, int], str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        for key in [*self.workers]:
            self._end(key, signal.SIGKILL)
        for node in self._nodes:
            node.stop()

    def log(self, index: int) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob(f"*-{index}/log")))

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self._look()
            except ApiException:  # an object went away meanwhile
                continue

    def _look(self) -> None:
        listed = self._custom.list_namespaced_custom_object(
            "rollfleet.dev", "v1alpha1", self._namespace, "collectorjobs"
        )
        uids = {each["metadata"]["uid"] for each in listed["items"]}
        wanted: dict[tuple[str, int], dict[str, Any]] = {}
        for run in self._plain(self._batch.list_namespaced_job(self._namespace))["items"]:
            metadata, spec = run["metadata"], run["spec"]
            if {owner["uid"] for owner in metadata.get("ownerReferences", [])} <= uids and not spec.get("suspend"):
                wanted |= {(metadata["name"], index): run for index in range(spec["parallelism"])}
        for key, run in wanted.items():
            if key not in self._pods:
                self._start(key, run)
        for key in [*self._pods]:
            if key not in wanted:
                self._end(key, signal.SIGTERM)

    def _start(self, key: tuple[str, int], run: dict[str, Any]) -> None:
        name, index = key
        template, owner = run["spec"]["template"], run["metadata"]
        run_of = {"apiVersion": "batch/v1", "kind": "Job", "name": owner["name"], "uid": owner["uid"]}
        labels = {**template["metadata"]["labels"], OWN: str(index)}
        metadata = {"generateName": f"{name}-{index}-", "labels": labels, "annotations": {OWN: str(index)}}
        metadata["ownerReferences"] = [run_of | {"controller": True}]
        container, served = template["spec"]["containers"][0], labels[ROLE_LABEL] == Role.ENV_SERVER
        pod = {"metadata": metadata, "spec": template["spec"]}
        if served:  # the API server asks its node for its port
            port = free_ports(1)[0]
            container["command"][container["command"].index("--port") + 1] = str(port)
            self._nodes.append(self._node(port))
            pod["spec"] = pod["spec"] | {"nodeName": self._nodes[-1].name}
        created = self._plain(self._core.create_namespaced_pod(self._namespace, pod))
        self._pods[key] = created["metadata"]["name"]
        state: dict[str, Any] = {"running": {"startedAt": owner["creationTimestamp"]}}
        if container["image"] in self.missing_images:
            state = {"waiting": {"reason": "ImagePullBackOff", "message": f"no image {container['image']}"}}
        phase = "Running" if "running" in state else "Pending"
        status = {"name": container["name"], "image": "", "imageID": "", "ready": phase == "Running", "restartCount": 0}
        body = {"status": {"phase": phase, "containerStatuses": [status | {"state": state}]}}
        self._core.patch_namespaced_pod_status(self._pods[key], self._namespace, body)
        if phase == "Running":
            self.workers[key] = self._process(key, template["spec"])
            if served:
                ready = sum(name == key[0] for name, _ in self.workers)
                counted: Any = {"status": {"active": ready, "ready": ready}}
                self._batch.patch_namespaced_job_status(key[0], self._namespace, counted)

    def _process(self, key: tuple[str, int], spec: dict[str, Any]) -> "subprocess.Popen[bytes]":
        folder = self._folder / f"{key[0]}-{key[1]}"
        folder.mkdir()
        for volume in spec["volumes"]:
            self._mount(volume, folder / volume["name"])
        mounted = folder / "rollfleet"
        variables = {
            address.URL: (mounted / address.URL_FILE).read_text(),
            address.JOB: (mounted / address.JOB_FILE).read_text(),
            address.CREDENTIALS: str(mounted / address.CREDENTIALS_FILE),
            address.JOB_COMPLETION_INDEX: str(key[1]),
            "PYTHONPATH": str(folder / "source"),
            CERTIFICATE: str(mounted / CERTIFICATE_FILE.name),
            address.THREADS: "1",
            "OMP_NUM_THREADS": "1",
        }
        kept = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "PYTHONPATH")}
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-m", *spec["containers"][0]["command"]]
            return subprocess.Popen(command, env=kept | variables, cwd=folder, stdout=log, stderr=log)

    def _mount(self, volume: dict[str, Any], folder: Path) -> None:
        folder.mkdir()
        if "secret" in volume:
            secret = self._plain(self._core.read_namespaced_secret(volume["secret"]["secretName"], self._namespace))
            for name, data in secret["data"].items():
                (folder / name).write_bytes(base64.b64decode(data))
        if "configMap" in volume:
            source = volume["configMap"]
            found = self._plain(self._core.read_namespaced_config_map(source["name"], self._namespace))["data"]
            for item in source.get("items") or [{"key": name, "path": name} for name in found]:
                file = folder / item["path"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(found[item["key"]])

    def _end(self, key: tuple[str, int], how: signal.Signals) -> None:
        if process := self.workers.pop(key, None):
            process.send_signal(how)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if pod := self._pods.pop(key, None):
            self._core.delete_namespaced_pod(pod, self._namespace, grace_period_seconds=0)

    def _plain(self, found: Any) -> dict[str, Any]:
        plain: dict[str, Any] = self._client.sanitize_for_serialization(found)
        return plain

"""A namespace in which a test plays the operator, the kubelet and other controllers."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kubernetes.client import CoreV1Api, CustomObjectsApi
from kubernetes.config import new_client_from_config
from kubernetes.dynamic import DynamicClient

from rollfleet_api.kubernetes_names import CONTAINER

GROUP = ("rollfleet.dev", "v1alpha1")
RBAC = "rbac.authorization.k8s.io"
NOW = "2026-11-21T12:00:00Z"


def condition(kind: str, reason: str = "", message: str = "") -> dict[str, Any]:
    found = {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": NOW}
    return found | {"observedGeneration": 1}


class Namespace:
    """A new namespace.

    Args:
        kubeconfig: The file of a user with all rights.
    """

    def __init__(self, kubeconfig: Path) -> None:
        admin = new_client_from_config(str(kubeconfig))
        self._core, self._custom = CoreV1Api(admin), CustomObjectsApi(admin)
        self._any, self._nodes = DynamicClient(admin), list[str]()
        self.name = f"jobs-{uuid.uuid4().hex[:8]}"
        self._core.create_namespace({"metadata": {"name": self.name}})

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        kind = self._any.resources.get(api_version=manifest["apiVersion"], kind=manifest["kind"])
        namespace = manifest["metadata"].get("namespace", self.name) if kind.namespaced else None
        created: dict[str, Any] = kind.create(manifest, namespace=namespace).to_dict()
        return created

    def grant(self, name: str, rules: Sequence[Any], subject: dict[str, str]) -> None:
        """Give a user or a ServiceAccount a Role of this name here, and no other right."""
        metadata = {"name": name, "namespace": self.name}
        self.create({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
        binding = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": metadata, "subjects": [subject]}
        self.create(binding | {"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name}})

    def report(self, job: str = "cartpole", **status: Any) -> None:
        """Write a job's status, as the operator does, in YAML's words."""
        body = {"status": {"observedGeneration": 1, **status}}
        self._custom.patch_namespaced_custom_object_status(*GROUP, self.name, "collectorjobs", job, body)

    def pod(self, index: int | None, *, job: str = "cartpole", beside: Sequence[str] = (), **status: Any) -> str:
        """Create the pod of a worker, or of the learner, and report its status. Return its name."""
        labels = {"rollfleet.dev/job": job, "rollfleet.dev/role": "learner" if index is None else "worker"}
        node, worker = f"node-{'learner' if index is None else index}", {"name": "worker", "image": "worker:1"}
        annotations = {"batch.kubernetes.io/job-completion-index": str(index or 0), CONTAINER: "worker"}
        metadata = {"generateName": f"{job}-", "labels": labels, "annotations": annotations}
        spec = {"nodeName": node, "containers": [*({**worker, "name": name} for name in beside), worker]}
        created = self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        name = str(created["metadata"]["name"])
        self._core.patch_namespaced_pod_status(name, self.name, {"status": {"phase": "Running", **status}})
        return name

    def status(self, manifest: dict[str, Any], status: dict[str, Any]) -> None:
        kind = self._any.resources.get(api_version=manifest["apiVersion"], kind=manifest["kind"])
        name, body = manifest["metadata"]["name"], {"status": status}
        merge = "application/merge-patch+json"
        namespace = manifest["metadata"].get("namespace", self.name)
        kind.status.patch(body, name=name, namespace=namespace, content_type=merge)

    def node(self, name: str, kubelet_port: int) -> None:
        """Create a node with a kubelet on this machine. Worker I is on `node-I`, the learner on `node-learner`."""
        self._core.create_node({"metadata": {"name": name}})
        endpoint = {"kubeletEndpoint": {"Port": kubelet_port}}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        self._core.patch_node_status(name, {"status": {"addresses": addresses, "daemonEndpoints": endpoint}})
        self._nodes.append(name)

    def event(self, uid: str, message: str, *, time: str) -> None:
        """Something is wrong with the job `cartpole`."""
        subject = {"kind": "CollectorJob", "name": "cartpole", "namespace": self.name, "uid": uid}
        what = {"type": "Warning", "reason": "ImagePullFailed", "message": message, "lastTimestamp": time}
        metadata = {"generateName": "cartpole-"}
        self.create({"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": subject, **what})

    def limit(self, hard: dict[str, str]) -> None:
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "limit"}, "spec": {"hard": hard}}
        self.create(quota)
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        self._core.patch_namespaced_resource_quota_status("limit", self.name, status)

    def clear(self) -> None:
        """Delete it and its nodes; what is in it stays, as no controller runs."""
        for node in self._nodes:
            self._core.delete_node(node)
        self._core.delete_namespace(self.name)

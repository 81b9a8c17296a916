"""A release's life on a real API server: installed, upgraded, uninstalled."""

import base64
import uuid
from typing import Any

import pytest
from tests.control.chart.helm import Helm, Rendered
from tests.control.kubernetes import ApiServer

from rollfleet_operator.manifest import Manifest

PLURALS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


class Site:
    """A namespace of one test, and helm in it."""

    def __init__(self, server: ApiServer, helm: Helm) -> None:
        self._server, self._helm = server, helm
        self._environ = {"KUBECONFIG": str(server.kubeconfig())}
        self.namespace = f"site-{uuid.uuid4().hex[:8]}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.request("POST", "/api/v1/namespaces", body={"metadata": {"name": self.namespace, "labels": labels}})

    def request(self, method: str, path: str, **more: Any) -> Manifest:
        return self._server.request(method, path, **more)

    def helm(self, command: str, *options: str) -> str:
        """Run helm; return what it writes."""
        chart = [str(self._helm.chart)] if command in ("install", "upgrade") else []
        where = [f"--namespace={self.namespace}", *options]
        done = self._helm.run(command, "rollfleet", *chart, *where, environ=self._environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, kind: str, name: str) -> Manifest:
        return self.request("GET", f"{PLURALS[kind].format(self.namespace)}/{name}")

    def names(self) -> set[str]:
        """What is there that has to do with us, as `kind/name`."""
        found = {
            f"{kind}/{each['metadata']['name']}"
            for kind, path in PLURALS.items()
            for each in self.request("GET", path.format(self.namespace))["items"]
        }
        return {name for name in found if "rollfleet" in name}


@pytest.fixture
def site(api_server: ApiServer, helm: Helm) -> Site:
    return Site(api_server, helm)


def test_the_api_server_stores_every_manifest_unchanged(site: Site, rendered: Rendered) -> None:
    for each in rendered.manifests:
        path = PLURALS[each["kind"]].format(site.namespace)
        manifest = {**each, "metadata": {**each["metadata"], "name": f"{each['metadata']['name']}"}}
        if each["kind"] == "CustomResourceDefinition":
            continue  # another test's operator may have it here
        manifest["metadata"].pop("namespace", None)
        site.request("POST", path, query={"dryRun": "All", "fieldValidation": "Strict"}, body=manifest)


def test_an_upgrade_keeps_the_key_and_an_uninstall_the_definition(site: Site) -> None:
    before = site.names()
    site.helm("install", *adopting(before))
    key = {"key": base64.b64encode(b"of the operator").decode()}
    path = f"/api/v1/namespaces/{site.namespace}/secrets/rollfleet-key"
    patch = {"data": key, "immutable": True}  # as the operator does
    site.request("PATCH", path, body=patch, content_type="application/merge-patch+json")
    for options in ([], ["--set=operator.podLabels.a=b"], ["--reset-values"]):
        site.helm("upgrade", *options, *adopting(before))
        assert site.get("Secret", "rollfleet-key")["data"] == key
    site.helm("uninstall")
    assert site.names() - before <= {"CustomResourceDefinition/collectorjobs.rollfleet.dev"}


def test_a_definition_that_another_release_has_left_is_taken_over_and_left_again(site: Site) -> None:
    name = "collectorjobs.rollfleet.dev"
    before = site.get("CustomResourceDefinition", name)["metadata"]["uid"]
    site.helm("install", "--take-ownership")
    there = site.get("CustomResourceDefinition", name)["metadata"]
    assert there["annotations"]["meta.helm.sh/release-namespace"] == site.namespace
    site.helm("uninstall")
    assert site.get("CustomResourceDefinition", name)["metadata"]["uid"] == before


def adopting(before: set[str]) -> list[str]:
    there = "CustomResourceDefinition/collectorjobs.rollfleet.dev" in before
    return ["--set=crds.enabled=false"] if there else []


def test_notes_warn_of_what_is_not_safe(site: Site) -> None:
    def notes(*options: str) -> str:
        shown = site.helm("install", "--dry-run=server", "--set=crds.enabled=false", *options)
        return shown.partition("NOTES:")[2]

    assert "helm -n" in notes()
    assert "WARNING" not in notes()
    assert "unencrypted" in notes("--set=nats.tls.enabled=false")
    assert "trust each other" in notes("--set=nats.external.url=tls://nats.example,nats.external.secret=nats-user")

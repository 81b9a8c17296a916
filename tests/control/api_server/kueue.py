"""The real Kueue, beside the API server. `build_kueue` builds its program, and collects its kinds and webhooks."""

import base64
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trustme
import yaml
from tests.control.chart.helm import find
from tests.control.kubernetes import ApiServer
from tests.ports import free_ports
from tests.running import running
from tests.waiting import wait_until

PROGRAM, GARBAGE_COLLECTOR = PROGRAMS = ("kueue", "kube-controller-manager")
ABSENT = (
    "no Kueue, or no kube-controller-manager: put both on the PATH "
    "(Go and `tests/control/api_server/build_kueue FOLDER` build Kueue)"
)
GROUP = "kueue.x-k8s.io"
CLUSTER_QUEUE, FLAVOR = "all", "spot"
NODES = {"capacity": "spot"}
"""Labels of the nodes of the flavor."""
STRICT = {"tests": "need-queues"}
"""Labels of a namespace in which Kueue holds Jobs without a queue, too."""
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
CONVERTED = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
"""Kinds with a conversion webhook, as Kueue's `config/components/crd/kustomization.yaml` patches them."""
START_S = 60.0
# Kueue reads the certificate of its metrics from this folder alone, though it serves none here: a private /etc has it.
PRIVATE_ETC = (
    'mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && cp -r "$0" /etc/kueue/metrics/certs && exec "$@"'
)


class Kueue:
    """A running Kueue, with one ClusterQueue for all namespaces."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    def request(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Send a request as an administrator."""
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self._server.request(method, path, body, query=query, content_type=content)

    def path(self, plural: str, name: str = "", *, namespace: str = "") -> str:
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/{GROUP}/v1beta2{within}/{plural}" + (f"/{name}" if name else "")

    def create(self, kind: str, name: str, *, namespace: str = "", **rest: Any) -> None:
        body = {"apiVersion": f"{GROUP}/v1beta2", "kind": kind, "metadata": {"name": name}, **rest}
        plural = f"{kind.lower()}es" if kind.endswith("ss") else f"{kind.lower()}s"
        self.request("POST", self.path(plural, namespace=namespace), body)

    def add_queue(self, namespace: str, name: str) -> None:
        self.create("LocalQueue", name, namespace=namespace, spec={"clusterQueue": CLUSTER_QUEUE})
        path = self.path("localqueues", name, namespace=namespace)
        wait_until(lambda: "Active" in held(self.request("GET", path)))

    def require_queues(self, namespace: str) -> None:
        """Have Kueue hold the namespace's Jobs without a queue, too."""
        self.request("PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": STRICT}})
        pod = {"restartPolicy": "Never", "containers": [{"name": "any", "image": "any"}]}
        job = {"metadata": {"name": "any"}, "spec": {"template": {"spec": pod}}}
        jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        wait_until(lambda: self.request("POST", jobs, job, dryRun="All")["spec"]["suspend"])

    def make_room(self, cpus: str) -> None:
        """Set how many CPU cores the admitted Jobs of all namespaces may request."""
        self.request("PATCH", self.path("clusterqueues", CLUSTER_QUEUE), {"spec": quota(cpus)})

    def workloads(self, namespace: str) -> list[Any]:
        """Return the workloads of a namespace: Kueue has one for each Job."""
        found: list[Any] = self.request("GET", self.path("workloads", namespace=namespace))["items"]
        return found


def quota(cpus: str) -> dict[str, Any]:
    """Return the specification of a ClusterQueue with room for so many CPU cores."""
    quotas = [{"name": "cpu", "nominalQuota": cpus}, {"name": "memory", "nominalQuota": "1Ti"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": FLAVOR, "resources": quotas}]}
    preemption = {"withinClusterQueue": "LowerPriority"}
    return {"namespaceSelector": {}, "preemption": preemption, "resourceGroups": [group]}


@contextmanager
def running_kueue(server: ApiServer, folder: Path) -> Iterator[Kueue]:
    """Run Kueue, and the garbage collector, which deletes the workload of a deleted Job. Kueue's kinds stay."""
    program, collector = find(PROGRAM), find(GARBAGE_COLLECTOR)
    assert program
    assert collector
    webhook_port, health_port = free_ports(2)
    authority, certificates = trustme.CA(), folder / "certificates"
    certificates.mkdir()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(certificates / "tls.key")
    certificate.cert_chain_pems[0].write_to_path(certificates / "tls.crt")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(configuration(certificates, webhook_port, health_port)))
    kueue, login = Kueue(server), f"--kubeconfig={server.kubeconfig()}"
    kinds, webhooks = manifests(Path(program).with_suffix(".yaml"), Webhooks(authority, webhook_port))
    for kind in kinds:
        kueue.request("POST", DEFINITIONS, kind)
    wait_until(lambda: all("Established" in held(kueue.request("GET", path(DEFINITIONS, kind))) for kind in kinds))
    in_private = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", PRIVATE_ETC, str(certificates))
    controllers = ("--controllers=garbage-collector-controller", "--leader-elect=false", "--secure-port=0")
    with (
        (folder / "log").open("w") as log,
        running(collector, login, *controllers, stdout=log, stderr=log),
        running(*in_private, program, login, f"--config={config}", stdout=log, stderr=log) as process,
    ):
        wait_until(lambda: process.poll() is not None or answers(f"http://127.0.0.1:{health_port}/readyz"), START_S)
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        for each in webhooks:
            kueue.request("POST", f"{HOOKS}/{each['kind'].lower()}s", each)
        try:
            kueue.create("ResourceFlavor", FLAVOR, spec={"nodeLabels": NODES})
            kueue.create("ClusterQueue", CLUSTER_QUEUE, spec=quota("0"))
            yield kueue
        finally:
            for each in webhooks:
                kueue.request("DELETE", path(f"{HOOKS}/{each['kind'].lower()}s", each))


def configuration(certificates: Path, webhook_port: int, health_port: int) -> dict[str, Any]:
    """Return Kueue's configuration: it holds Jobs that have a queue, and all those of a strict namespace."""
    return {
        "apiVersion": f"config.{GROUP}/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "manageJobsWithoutQueueName": True,
        "managedJobsNamespaceSelector": {"matchLabels": STRICT},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False, "ManagedJobsNamespaceSelectorAlwaysRespected": False},
    }


class Webhooks:
    """Where the API server finds Kueue's webhooks."""

    def __init__(self, authority: trustme.CA, port: int) -> None:
        self._url = f"https://127.0.0.1:{port}"
        self._bundle = base64.b64encode(authority.cert_pem.bytes()).decode()

    def client_config(self, path: str) -> dict[str, str]:
        return {"url": self._url + path, "caBundle": self._bundle}


def manifests(file: Path, webhooks: Webhooks) -> tuple[list[Any], list[Any]]:
    """Return Kueue's kinds, and its webhooks for Jobs and for its own kinds: no other kind of job is installed."""
    found = [each for each in yaml.load_all(file.read_text(), yaml.CSafeLoader) if each]
    kinds = [each for each in found if each["kind"] == "CustomResourceDefinition"]
    for kind in kinds:
        if kind["spec"]["names"]["plural"] in CONVERTED:
            webhook = {"clientConfig": webhooks.client_config("/convert"), "conversionReviewVersions": ["v1"]}
            kind["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    configurations = [each for each in found if each["kind"].endswith("WebhookConfiguration")]
    for each in configurations:
        each["webhooks"] = [hook for hook in each["webhooks"] if hook["rules"][0]["apiGroups"][0] in ("batch", GROUP)]
        for hook in each["webhooks"]:
            hook["clientConfig"] = webhooks.client_config(hook["clientConfig"]["service"]["path"])
    return kinds, configurations


def path(folder: str, manifest: Any) -> str:
    return f"{folder}/{manifest['metadata']['name']}"


def held(manifest: Any) -> list[str]:
    conditions = (manifest.get("status") or {}).get("conditions") or []
    return [each["type"] for each in conditions if each["status"] == "True"]


def answers(url: str) -> bool:
    with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False

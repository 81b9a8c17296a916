"""The objects around a job's environment servers: their certificate, their Service, their borders.

Their pods are in `workloads`.
"""

from typing import Final

from rollfleet_api.env_servers import CERTIFICATE, CERTIFICATE_FILE, CERTIFICATE_HOST, PORT, SERVERS, address_of
from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import JOB_LABEL, env_servers
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.installation_key import InstallationKey
from rollfleet_operator.manifest import Manifest, built
from rollfleet_operator.settings import Settings

_PORTS: Final = [{"port": PORT, "protocol": "TCP"}]


def files(job: CollectorJob, key: InstallationKey) -> dict[str, bytes]:
    """Return the file by which servers, workers and learner trust each other; empty: the job has no servers."""
    if job.spec.env.servers is None:
        return {}
    certificate, own = key.certificate(job, CERTIFICATE_HOST, mutual=True)
    return {CERTIFICATE_FILE.name: own + certificate + key.authority(job)}


def variables(job: CollectorJob, run: str = "") -> list[Manifest]:
    """Return the variables of a server, and of a worker whose servers are the pods of the Kubernetes Job `run`."""
    found = {CERTIFICATE: str(CERTIFICATE_FILE)}
    if run:
        found[SERVERS] = address_of(run, job.metadata.name, job.metadata.namespace)
    return [{"name": name, "value": value} for name, value in found.items()]


def service(job: CollectorJob) -> Manifest:
    """Build the Service that gives a name to the host of each server, also before it is ready."""
    name, labels = job.metadata.name, names.labels(job.metadata.name, Role.ENV_SERVER)
    ports = [{"name": str(Role.ENV_SERVER), "targetPort": PORT, "appProtocol": "tcp", **port} for port in _PORTS]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels, "ports": ports}
    return built("Service", env_servers(name), labels, spec=spec)


def ways_out(job: CollectorJob) -> list[Manifest]:
    """Return the rules of a NetworkPolicy that let workers reach the servers of their job, if it has any."""
    servers = {"podSelector": {"matchLabels": names.labels(job.metadata.name, Role.ENV_SERVER)}}
    return [{"ports": _PORTS, "to": [servers]}] if job.spec.env.servers else []


def network_policy(job: CollectorJob, settings: Settings) -> Manifest:
    """Build the NetworkPolicy of the servers: from the job's pods, and from whom the installation lets to NATS."""
    name, labels = job.metadata.name, names.labels(job.metadata.name, Role.ENV_SERVER)
    peers = [{"podSelector": {"matchLabels": {JOB_LABEL: name}}}, *settings.nats_from]
    spec = {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": _PORTS, "from": peers}],
        "egress": [*settings.dns],
    }
    return built("NetworkPolicy", names.network_policy(name, Role.ENV_SERVER), labels, spec=spec)

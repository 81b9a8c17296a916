"""What a job's pods may do, and how they get to NATS: ServiceAccount, Secrets, NetworkPolicies."""

import base64
import re

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import Endpoint

CREDENTIALS = "user.creds"
_NATS_PORT = 4222
_DNS_PORT = 53


def account(job: CollectorJob) -> Manifest:
    """The identity of all pods of a job. It has no rights and no token: they do not speak to the API server."""
    name = job.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": names.account(name), "labels": names.labels(name)},
        "automountServiceAccountToken": False,
    }


def secret(job: CollectorJob, role: Role, endpoint: Endpoint, credentials: bytes | None) -> Manifest:
    """The files that are mounted into a role's pods; `rollfleet_api.environment` reads them."""
    files = {
        "url": endpoint.url.encode(),
        "job": job.key.encode(),
        CREDENTIALS: credentials,
        "ca.crt": endpoint.ca,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.secret(job.metadata.name, role), "labels": names.labels(job.metadata.name, role)},
        "type": "Opaque",
        "data": {name: base64.b64encode(data).decode() for name, data in files.items() if data is not None},
    }


def mounted_credentials(secret: Manifest) -> bytes | None:
    """The credentials file in a Secret; None: it has none."""
    data = (secret.get("data") or {}).get(CREDENTIALS)
    return base64.b64decode(data) if data else None


def network_policy(job: CollectorJob, role: Role, endpoint: Endpoint) -> Manifest:
    """Lets nothing into a role's pods, and workers out to name servers and NATS alone.

    A learner may go anywhere: it writes its results to where its user wants them. Policies add up, so a user whose
    environments need more allows it with a policy of his own.
    """
    name = job.metadata.name
    ports = sorted({int(port) for port in re.findall(r":(\d+)(?:,|/|$)", endpoint.url)} or {_NATS_PORT})
    dns = [{"port": _DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]
    nats = [{"port": port, "protocol": "TCP"} for port in ports]
    fence: Manifest = {"policyTypes": ["Ingress"]}
    if role is Role.WORKER:
        fence = {"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": dns}, {"ports": nats}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.network_policy(name, role), "labels": names.labels(name, role)},
        "spec": {"podSelector": {"matchLabels": names.labels(name, role)}, **fence},
    }

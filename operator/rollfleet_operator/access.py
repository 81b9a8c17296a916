"""The objects that give a job's pods their rights: ServiceAccount, Secrets, NetworkPolicies."""

import base64
import re
from collections.abc import Sequence

from rollfleet_api.address import CA_FILE, CREDENTIALS_FILE, JOB_FILE, PUBLIC_URL_FILE, URL_FILE
from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import ROLE_LABEL
from rollfleet_api.nats_server import PORT
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_access import Login, NatsAccess
from rollfleet_operator.settings import Settings

ROLES = (Role.WORKER, Role.LEARNER)
"""The roles with a Secret and a NetworkPolicy. Evaluation workers have those of the workers."""

_DNS_PORT = 53


def account(job: CollectorJob) -> Manifest:
    """Build the ServiceAccount of a job's pods. It has no rights and no token: they do not use the API server."""
    name = job.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": names.account(name), "labels": names.labels(name)},
        "automountServiceAccountToken": False,
    }


def secret(job: CollectorJob, role: Role, login: Login, public_url: str = "") -> Manifest:
    """Build the Secret that is mounted into a role's pods; `rollfleet_api.address` reads its files."""
    files = {
        URL_FILE: login.url.encode(),
        JOB_FILE: job.key.encode(),
        CREDENTIALS_FILE: login.credentials,
        CA_FILE: login.ca,
        PUBLIC_URL_FILE: public_url.encode() or None,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.secret(job.metadata.name, role), "labels": names.labels(job.metadata.name, role)},
        "type": names.SECRET_TYPE,
        "data": {name: base64.b64encode(data).decode() for name, data in files.items() if data is not None},
    }


def network_policy(job: CollectorJob, role: Role, access: NatsAccess, settings: Settings) -> Manifest:
    """Build the NetworkPolicy of a role: no traffic into its pods; out of them, only to name servers and NATS.

    A learner may connect to any address: it writes its results where its user wants them. NetworkPolicies add up: users
    whose environments need more traffic add their own.
    """
    name = job.metadata.name
    pods = [Role.LEARNER] if role is Role.LEARNER else [Role.WORKER, Role.EVALUATION]
    selector = {"key": ROLE_LABEL, "operator": "In", "values": [each.value for each in pods]}
    rules: Manifest = {"policyTypes": ["Ingress"]}
    if role is not Role.LEARNER:
        dns = [{"port": _DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]
        peers: Sequence[Manifest] = [{"podSelector": {"matchLabels": names.labels(name, Role.NATS)}}]
        ports = {PORT}
        if access.external:
            named = [re.search(r":(\d+)(?:/|$)", url) for url in access.external.url.split(",")]
            peers, ports = settings.nats_to, {int(port[1]) if port else PORT for port in named}
        nats: list[Manifest] = [{"port": port, "protocol": "TCP"} for port in sorted(ports)]
        egress = [_egress(dns, settings.dns_to), _egress(nats, peers)]
        rules = {"policyTypes": ["Ingress", "Egress"], "egress": egress}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.network_policy(name, role), "labels": names.labels(name, role)},
        "spec": {"podSelector": {"matchLabels": names.labels(name), "matchExpressions": [selector]}, **rules},
    }


def _egress(ports: list[Manifest], peers: Sequence[Manifest]) -> Manifest:
    return {"ports": ports, "to": list(peers)} if peers else {"ports": ports}

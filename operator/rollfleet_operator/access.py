"""The objects that give a job's pods their rights: ServiceAccount, Secrets, NetworkPolicies."""

import base64
import re
from collections.abc import Mapping, Sequence

from rollfleet_api.address import CA_FILE, CREDENTIALS_FILE, JOB_FILE, SPEC_FILE, URL_FILE
from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import ROLE_LABEL
from rollfleet_api.nats_server import PORT
from rollfleet_api.permissions import Role
from rollfleet_api.publication import published_bytes
from rollfleet_operator import env_servers, names
from rollfleet_operator.manifest import Manifest, built
from rollfleet_operator.nats_access import Login, NatsAccess
from rollfleet_operator.settings import Settings

ROLES = (Role.WORKER, Role.LEARNER)
"""The roles with a Secret and a NetworkPolicy. Evaluation workers have those of the workers."""


def account(job: CollectorJob, settings: Settings) -> Manifest:
    """Build the ServiceAccount of a job's pods. It has no rights and no token: they do not use the API server.

    It names the job's installation, and the Secrets by which the kubelet pulls the images of all its pods.
    """
    name, secrets = job.metadata.name, [{"name": each} for each in settings.image_pull_secrets]
    fields: Manifest = {"automountServiceAccountToken": False} | ({"imagePullSecrets": secrets} if secrets else {})
    manifest = built("ServiceAccount", names.account(name), names.labels(name), **fields)
    manifest["metadata"]["annotations"] = {names.INSTALLATION: settings.key_secret}
    return manifest


def secret(job: CollectorJob, role: Role, login: Login, more: Mapping[str, bytes]) -> Manifest:
    """Build the Secret that is mounted into a role's pods; `rollfleet_api.address` reads its files, but for `more`."""
    files = {
        URL_FILE: login.url.encode(),
        JOB_FILE: job.key.encode(),
        SPEC_FILE: published_bytes(job),
        CREDENTIALS_FILE: login.credentials,
        CA_FILE: login.ca or b"",
        **more,
    }
    name = job.metadata.name
    return files_secret(names.secret(name, role), names.labels(name, role), files)


def files_secret(name: str, labels: dict[str, str], files: Mapping[str, bytes]) -> Manifest:
    """Build a Secret of files, without the empty ones."""
    data = {file: base64.b64encode(content).decode() for file, content in files.items() if content}
    return built("Secret", name, labels, type=names.SECRET_TYPE, data=data)


def network_policy(job: CollectorJob, role: Role, access: NatsAccess, settings: Settings) -> Manifest:
    """Build the NetworkPolicy of a role: no traffic into its pods; out of them, only to servers.

    These are name servers, NATS, and the environment servers of the job. A learner may connect to any address: it
    writes its results where its user wants them. NetworkPolicies add up: users whose environments need more traffic
    add their own.
    """
    name = job.metadata.name
    pods = [Role.LEARNER] if role is Role.LEARNER else [Role.WORKER, Role.EVALUATION]
    selector = {"key": ROLE_LABEL, "operator": "In", "values": [each.value for each in pods]}
    rules: Manifest = {"policyTypes": ["Ingress"]}
    if role is not Role.LEARNER:
        peers: Sequence[Manifest] = [{"podSelector": {"matchLabels": names.labels(name, Role.NATS)}}]
        ports = {PORT}
        if access.external:
            named = [re.search(r":(\d+)(?:/|$)", url) for url in access.external.url.split(",")]
            peers, ports = settings.nats_to, {int(port[1]) if port else PORT for port in named}
        nats: list[Manifest] = [{"port": port, "protocol": "TCP"} for port in sorted(ports)]
        to = {"to": [*peers]} if peers else {}
        egress = [*settings.dns, {"ports": nats, **to}, *env_servers.ways_out(job)]
        rules = {"policyTypes": ["Ingress", "Egress"], "egress": egress}
    spec = {"podSelector": {"matchLabels": names.labels(name), "matchExpressions": [selector]}, **rules}
    return built("NetworkPolicy", names.network_policy(name, role), names.labels(name, role), spec=spec)

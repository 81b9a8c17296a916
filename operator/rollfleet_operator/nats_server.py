"""The objects of a job's own NATS server: its configuration, its Service, its Deployment of one pod, its borders."""

import json
from typing import Final

from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import CONTAINER, JOB_LABEL, nats_server
from rollfleet_api.nats_server import PORT, USERS, nats_configuration
from rollfleet_api.permissions import Role
from rollfleet_api.placement import NatsService
from rollfleet_api.publication import subjects_of
from rollfleet_operator import names, pods
from rollfleet_operator.access import files_secret
from rollfleet_operator.manifest import Manifest, built, digest, overlay
from rollfleet_operator.nats_access import NatsAccess, host_of
from rollfleet_operator.observed import Observed
from rollfleet_operator.scheduler import is_held
from rollfleet_operator.settings import Settings

_NAME: Final = "nats"
_FOLDER: Final = "/etc/nats"
_CONFIG, _CERTIFICATE, _KEY = "nats.json", "tls.crt", "tls.key"
_HTTP: Final = 8222
_LOST_S: Final = 10
"""Seconds until Kubernetes replaces the server of a node that does not answer. A worker's pod waits for minutes."""


def is_needed(job: CollectorJob, observed: Observed) -> bool:
    """Return whether the job needs its server now.

    Pods that leave still deliver and save. Pods that a scheduler holds need no server. A learner that is no pod of the
    job may come back after the job's end, and sees then how it ended.
    """
    if observed.occupied:
        return True
    if job.has_ended:
        return job.spec.learner is None
    runs = [run for run in observed.runs if not run.deleting]
    held = all(run.suspended for run in runs) if runs else is_held(job.metadata.labels)
    return not (job.spec.suspend or held)


def secret(job: CollectorJob, settings: Settings, access: NatsAccess, public_host: str = "") -> Manifest:
    """Build the Secret with the server's configuration and certificate, which only its pod mounts."""
    passwords = {user: access.key.password(job, user) for user in USERS}
    configuration = nats_configuration(subjects_of(job), passwords) | {
        "listen": f"0.0.0.0:{PORT}",
        "http": f"0.0.0.0:{_HTTP}",
    }
    files: dict[str, bytes] = {}
    if access.tls:
        files[_CERTIFICATE], files[_KEY] = access.key.certificate(job, *filter(None, (host_of(job), public_host)))
        configuration["tls"] = {"cert_file": f"{_FOLDER}/{_CERTIFICATE}", "key_file": f"{_FOLDER}/{_KEY}", "timeout": 5}
    files[_CONFIG] = json.dumps(settings.nats_config | configuration).encode()
    name = job.metadata.name
    return files_secret(names.server_secret(name), names.labels(name, Role.NATS), files)


def service(job: CollectorJob, settings: Settings) -> Manifest:
    """Build the Service, by which clients find the server's pod."""
    labels = names.labels(job.metadata.name, Role.NATS)
    # Without `appProtocol` a service mesh would wait for the client's first bytes: of NATS the server speaks first.
    port = {"name": "nats", "port": PORT, "targetPort": PORT, "protocol": "TCP", "appProtocol": "tcp"}
    spec = {"type": str(job.spec.nats.service), "selector": labels, "ports": [port]}
    manifest = built("Service", nats_server(job.metadata.name), labels, spec=spec)
    if job.spec.nats.service is NatsService.LOAD_BALANCER:
        manifest["metadata"]["annotations"] = dict(settings.nats_service_annotations)
    return manifest


def deployment(job: CollectorJob, settings: Settings, mounted: Manifest) -> Manifest:
    """Build the Deployment of the server, which starts again when `mounted`, its Secret, changes.

    Not a Kubernetes Job: that waits ten seconds and more before it replaces a pod.

    Raises:
        TemplateInvalid: The template in the job does not have the form of a pod template.
    """
    name, labels = job.metadata.name, names.labels(job.metadata.name, Role.NATS)
    asked = job.spec.nats.resources
    resources = {
        "requests": settings.nats_resources.get("requests", {}) | asked.requests,
        "limits": settings.nats_resources.get("limits", {}) | asked.limits,
    }
    health = {"path": "/healthz", "port": _HTTP}
    template: Manifest = {
        "metadata": {
            "labels": labels,
            "annotations": {CONTAINER: _NAME, names.CONFIG: digest(mounted["data"])},
        },
        "spec": {
            **pods.identity(job, settings),
            "terminationGracePeriodSeconds": 5,
            **pods.inherited(job),
            "containers": [
                {
                    "name": _NAME,
                    "image": settings.nats_image,
                    "imagePullPolicy": settings.nats_pull_policy,
                    "args": ["--config", f"{_FOLDER}/{_CONFIG}"],
                    # Of its limit, or of the node's memory, as a million bytes for each MiB: the rest is for what Go
                    # does not count.
                    "env": [
                        {
                            "name": "MEMORY_MIB",
                            "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
                        },
                        {"name": "GOMEMLIMIT", "value": "$(MEMORY_MIB)000000"},
                    ],
                    "ports": [{"containerPort": PORT, "protocol": "TCP"}],
                    "startupProbe": {"httpGet": health, "periodSeconds": 1, "failureThreshold": 60},
                    "livenessProbe": {"httpGet": health, "timeoutSeconds": 5, "failureThreshold": 6},
                    "resources": {kind: amounts for kind, amounts in resources.items() if amounts},
                    "securityContext": pods.CONTAINER_SECURITY,
                    "volumeMounts": [
                        {"name": "nats", "mountPath": _FOLDER, "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "nats", "secret": {"secretName": names.server_secret(name), "defaultMode": 0o440}},
            ],
        },
    }
    template = overlay(template, pods.checked(job.spec.nats.template))
    template["metadata"]["labels"] |= labels
    template["spec"]["tolerations"] = _tolerations(template["spec"].get("tolerations") or [])
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 0,
        "strategy": {"type": "Recreate"},  # two servers would share the job's clients
        "selector": {"matchLabels": labels},
        "template": template,
    }
    return built("Deployment", nats_server(name), labels, spec=spec)


def _tolerations(written: list[Manifest]) -> list[Manifest]:
    """Return a user's tolerations after those of a lost node, unless the user has named its taint."""
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_S}
    keys = [f"node.kubernetes.io/{taint}" for taint in ("not-ready", "unreachable")]
    return [{"key": key, **lost} for key in keys if key not in [each.get("key") for each in written]] + written


def network_policy(job: CollectorJob, settings: Settings) -> Manifest:
    """Build the NetworkPolicy of the server: from the job's pods, the operator, and whom the installation allows."""
    name, labels = job.metadata.name, names.labels(job.metadata.name, Role.NATS)
    peers = [{"podSelector": {"matchLabels": {JOB_LABEL: name}}}, settings.operator_pods, *settings.nats_from]
    ports = [{"port": PORT, "protocol": "TCP"}]
    open_to_all = job.spec.nats.service is NatsService.LOAD_BALANCER
    spec = {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": ports} if open_to_all else {"ports": ports, "from": peers}],
    }
    return built("NetworkPolicy", names.network_policy(name, Role.NATS), labels, spec=spec)

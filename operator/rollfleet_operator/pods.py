"""What every pod of ours has: it passes Pod Security "restricted", and is told where its job is by mounted files."""

from typing import Any, Final

from rollfleet_api.environment import FILES
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.errors import TemplateInvalid
from rollfleet_operator.manifest import Manifest, overlay

USER: Final = 65532
"""Who runs in a pod: a number, so that the cluster sees that it is not root; the one that our images name."""

SOURCE: Final = "/var/run/rollfleet-source"
"""Where the files of `source.configMap` are mounted; it is on the import path."""

NOTHING: Final = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
"""What hides the GPUs of a node from a pod that asked for none: some container runtimes show all to everybody."""

_NO_DEVICES: Final = ("cpu", "memory", "ephemeral-storage", "hugepages-")


def pod_template(job: CollectorJob, role: Role, revision: str, container: Manifest, written: Manifest) -> Manifest:
    """The pod template of a role.

    Args:
        job: The job.
        role: Worker or learner.
        revision: Of this role.
        container: What the role's own container has besides what all have; its `name` is what users write over.
        written: The user's template, laid over ours. It may break what "restricted" asks for; then the cluster says so.

    Raises:
        TemplateInvalid: `written` has not the shape of a pod template.
    """
    _check(written)
    name, source = job.metadata.name, job.spec.source
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "rollfleet", "secret": {"secretName": names.secret(name, role), "defaultMode": 0o440}},
    ]
    mounts: list[Manifest] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "rollfleet", "mountPath": str(FILES), "readOnly": True},
    ]
    variables: list[Manifest] = [{"name": "HOME", "value": "/tmp"}]
    if source is not None:
        volumes.append({"name": "source", "configMap": {"name": source.config_map}})
        mounts.append({"name": "source", "mountPath": SOURCE, "readOnly": True})
        variables.append({"name": "PYTHONPATH", "value": SOURCE})
    ours: Manifest = {
        "metadata": {"labels": names.labels(name, role) | {names.REVISION: revision}},
        "spec": {
            "serviceAccountName": names.account(name),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    **container,
                    "env": variables,
                    "volumeMounts": mounts,
                    # The end of a crash's log is its message: nobody needs a right to read logs to see it in status.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": volumes,
        },
    }
    template: Manifest = overlay(ours, written)
    # Held whatever the user writes: by these the pods are found, and without `Never` a failure policy is refused.
    template["metadata"]["labels"] |= ours["metadata"]["labels"]
    template["spec"]["restartPolicy"] = "Never"
    if not asks_for_device(template):
        _hide_devices(template, container["name"])
    return template


def first_container(written: Manifest, otherwise: str) -> str:
    """The name of a template's first container, which is the role's own.

    Raises:
        TemplateInvalid: `written` has not the shape of a pod template.
    """
    _check(written)
    containers = (written.get("spec") or {}).get("containers")
    return str(containers[0]["name"]) if containers else otherwise


def _check(written: Manifest) -> None:
    """That what we look into is what it must be; the API server checks all the rest."""
    spec = written.get("spec") or {}
    if not isinstance(spec, dict) or not isinstance(written.get("metadata") or {}, dict):
        raise TemplateInvalid(
            "`metadata` and `spec` of a template are mappings; write e.g. `{spec: {nodeSelector: {}}}`"
        )
    containers = spec.get("containers") or []
    if not isinstance(containers, list) or not all(isinstance(each, dict) and each.get("name") for each in containers):
        raise TemplateInvalid("`spec.containers` of a template is a list of mappings, each with a `name`")


def asks_for_device(template: Manifest) -> bool:
    """Whether a container asks for more than CPUs, memory and disk, or for a claim on a device."""
    spec = template["spec"]
    return bool(spec.get("resourceClaims")) or any(
        not resource.startswith(_NO_DEVICES)
        for container in spec["containers"]
        for resource in container.get("resources", {}).get("limits", {})
    )


def _hide_devices(template: Manifest, name: str) -> None:
    for container in template["spec"]["containers"]:
        if container["name"] == name:
            hidden: list[Any] = [{"name": variable, "value": value} for variable, value in NOTHING.items()]
            container["env"] = overlay(hidden, container.get("env", []))

"""The pod template of workers and learners: it passes Pod Security "restricted" and mounts the job's address."""

from collections import Counter
from operator import itemgetter
from typing import Any, Final

from rollfleet_api.address import FILES
from rollfleet_api.env_servers import CERTIFICATE_FILE
from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import CONTAINER
from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.errors import TemplateInvalid
from rollfleet_operator.manifest import Manifest, overlay
from rollfleet_operator.settings import Settings

USER: Final = 65532
"""User id in pods: a number, so that the cluster sees that it is not root; the same as in Rollfleet's images."""

SOURCE: Final = "/var/run/rollfleet-source"
"""The mount path of `source.configMap`; it is on the import path."""

NOTHING: Final = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
"""Variables that hide a node's GPUs from a pod without any: some container runtimes show them to all pods."""

TMP_SIZE: Final = "10Gi"
"""The most that a pod may write to `/tmp`: without a limit it could fill its node. A template may raise it."""

SHM_SIZE: Final = "8Gi"
"""The most shared memory of a pod; it counts towards the pod's memory limit, if it has one."""

_SCRATCH: Final[list[Manifest]] = [
    {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}},
    {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHM_SIZE}},
]
_SCRATCH_MOUNTS: Final[list[Manifest]] = [
    {"name": "tmp", "mountPath": "/tmp"},
    {"name": "shm", "mountPath": "/dev/shm"},
]

POD_SECURITY: Final[Manifest] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_ANY_USER: Final = {field: value for field, value in POD_SECURITY.items() if value != USER}
CONTAINER_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""As Pod Security "restricted" requires it."""

INHERITED: Final = ("imagePullSecrets", "priorityClassName")
"""Fields of the workers' pods that servers' have, too: they must start where the workers start, and outlast them."""

_LISTS: Final = ("initContainers", "resourceClaims", "tolerations")
_NO_DEVICES: Final = ("cpu", "memory", "ephemeral-storage", "hugepages-")


def pod_template(job: CollectorJob, settings: Settings, role: Role, container: Manifest, written: Manifest) -> Manifest:
    """Build the pod template of a role.

    Args:
        job: The job.
        settings: The operator's settings.
        role: Any but that of NATS.
        container: Fields of the role's own container; users refer to it by its `name`.
        written: The user's template, `checked`, merged over the operator's. It may violate "restricted"; then the
            cluster refuses the pods.
    """
    name, source = job.metadata.name, job.spec.source
    secret: Manifest = {"secretName": names.secret(name, role), "defaultMode": 0o440}
    if role is Role.ENV_SERVER:  # it connects to nothing
        secret["items"] = [{"key": CERTIFICATE_FILE.name, "path": CERTIFICATE_FILE.name}]
    volumes = [*_SCRATCH, {"name": "rollfleet", "secret": secret}]
    mounts = [*_SCRATCH_MOUNTS, {"name": "rollfleet", "mountPath": str(FILES), "readOnly": True}]
    variables = [{"name": "HOME", "value": "/tmp"}, *container.get("env", ())]
    if source is not None:
        volumes.append({"name": "source", "configMap": {"name": source.config_map}})
        mounts.append({"name": "source", "mountPath": SOURCE, "readOnly": True})
        variables.append({"name": "PYTHONPATH", "value": SOURCE})
    ours: Manifest = {
        "metadata": {"labels": names.labels(name, role), "annotations": {CONTAINER: container["name"]}},
        "spec": {
            **identity(job, settings),
            "containers": [
                {
                    **container,
                    "env": variables,
                    "volumeMounts": mounts,
                    # The end of a failed container's log is its message: status shows it without a right to read logs.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": CONTAINER_SECURITY,
                }
            ],
            "volumes": volumes,
        },
    }
    template: Manifest = overlay(ours, written)
    # Users cannot change these: pods are found by the labels, and failure policies need `Never`.
    for field, forced in ours["metadata"].items():
        template["metadata"][field] |= forced
    template["spec"]["restartPolicy"] = "Never"
    own = [each for each in template["spec"]["containers"] if each["name"] == container["name"]]
    for variable in own[0].get("env", []):
        if source and variable["name"] == "PYTHONPATH" and variable.get("value", SOURCE) != SOURCE:
            variable["value"] = f"{SOURCE}:{variable['value']}"
    if not asks_for_device(template):
        _hide_devices(template, container["name"])
    return template


def identity(job: CollectorJob, settings: Settings) -> Manifest:
    """Return the fields of a pod's spec that say as whom it runs: without a token, and as an unprivileged user."""
    return {
        "serviceAccountName": names.account(job.metadata.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY if settings.fixed_user else _ANY_USER,
    }


def inherited(job: CollectorJob) -> Manifest:
    """Return the fields of the workers' template that the pods of servers have, too. Raises TemplateInvalid."""
    written = checked(job.spec.template)["spec"]
    return {field: value for field in INHERITED if (value := written.get(field))}


def checked(written: Manifest) -> Manifest:
    """Check the fields of a template that are used here, and leave out their nulls; the API server checks all others.

    Raises:
        TemplateInvalid: `written` does not have the form of a pod template.
    """
    metadata, spec = _mapping(written, "metadata"), _mapping(written, "spec")
    fields = {field: _mapping(metadata, field, "metadata.") for field in ("labels", "annotations")}
    containers = spec.get("containers") or []
    if not isinstance(containers, list) or not all(
        isinstance(each, dict) and each.get("name") and isinstance(each["name"], str) for each in containers
    ):
        raise TemplateInvalid("`spec.containers` of a template is a list of mappings, each with a `name`")
    name, count = max(Counter(each["name"] for each in containers).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise TemplateInvalid(f"`spec.containers` of a template has {count} containers `{name}`; write one")
    init, *others = (spec.get(field) or [] for field in _LISTS)
    if not all(isinstance(field, list) and all(isinstance(each, dict) for each in field) for field in (init, *others)):
        raise TemplateInvalid(f"{', '.join(f'`spec.{field}`' for field in _LISTS)} of a template are lists of mappings")
    for container in [*containers, *init]:
        variables = container.get("env") or []
        named = isinstance(variables, list) and all(isinstance(each, dict) and each.get("name") for each in variables)
        if not named:
            raise TemplateInvalid(
                "`env` of a container of a template is a list of mappings, each with a `name`; write e.g. "
                '`[{name: A, value: "1"}]`'
            )
        resources = _mapping(container, "resources", "spec.containers[].")
        _mapping(resources, "limits", "spec.containers[].resources.")
    parts = {"metadata": metadata | fields, "spec": {**spec, "containers": containers}}
    return {**written, **parts}


def _mapping(parent: Manifest, field: str, path: str = "") -> Manifest:
    """Return a field that is a mapping; empty: it is null or missing."""
    found = parent.get(field)
    if found is not None and not isinstance(found, dict):
        raise TemplateInvalid(
            f"`{path}{field}` of a template is a mapping; write e.g. `{{spec: {{nodeSelector: {{}}}}}}`"
        )
    return found or {}


def asks_for_device(template: Manifest) -> bool:
    """Return whether a container requests a device: more than CPUs, memory and disk, or a resource claim."""
    spec = template["spec"]
    return bool(spec.get("resourceClaims")) or any(
        not resource.startswith(_NO_DEVICES)
        for container in spec["containers"]
        for resource in (container.get("resources") or {}).get("limits") or {}
    )


def _hide_devices(template: Manifest, name: str) -> None:
    for container in template["spec"]["containers"]:
        if container["name"] == name:
            hidden: list[Any] = [{"name": variable, "value": value} for variable, value in NOTHING.items()]
            container["env"] = overlay(hidden, container.get("env", []), "env")

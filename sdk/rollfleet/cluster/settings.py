"""`rollfleet.Cluster`: the settings of a collector's workers on a Kubernetes cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from rollfleet.arguments import plain, seconds, shown, true_or_false, whole_number
from rollfleet.errors import JobInvalid
from rollfleet_api.fields import Quantity
from rollfleet_api.metadata import JobName, Namespace
from rollfleet_api.placement import Image, ResourceName

_TTL_S: Final = 300
"""The time for which the job of a program that was killed remains, after its end."""

_TYPES: Final[dict[str, Any]] = {
    "namespace": Namespace,
    "name": JobName,
    "image": Image,
    "cpu": Quantity,
    "memory": Quantity,
    "gpu_resource": ResourceName,
    "context": str,
    "labels": dict[str, str],
    "template": dict[str, Any],
    "nats": dict[str, Any],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Workers as pods of a Kubernetes cluster: `rollfleet.Collector(..., workers=32, cluster=Cluster(...))`.

    The collector submits a CollectorJob, waits for its workers, and deletes it at the end; `rollfleet.make_vec` does so
    with environment servers, which are then the workers below. Both act with the rights of the kubeconfig's user: the
    chart's ClusterRole `rollfleet-user` has those that they need.

    Example:
        >>> import rollfleet
        >>> rollfleet.Cluster(namespace="team-a", gpu=1, cpu=2, memory="4Gi").cpu
        2
        >>> rollfleet.Cluster(gpu=-1)
        Traceback (most recent call last):
        rollfleet.errors.JobInvalid: Cluster(gpu=): must be at least 0, got -1

    Attributes:
        namespace: The namespace of the job. None: that of the context, or of this pod.
        context: The context of the kubeconfig. None: the current one; in a pod without kubeconfig, its account.
        name: The job's name. None: a new one, made of the environment's.
        image: The image of the workers. None: the chart's. It has Rollfleet, and all packages that the code imports.
        gpu: GPUs of each worker.
        gpu_resource: The resource name of the GPUs.
        cpu: CPUs reserved for each worker, such as 2 or "500m". None: none.
        memory: Memory of each worker, reserved and at most, such as "4Gi". None: no reservation and no limit.
        labels: Labels of the job, such as Kueue's queue.
        template: Changes to the workers' pod template: tolerations, node selectors, volumes.
        nats: Fields of the job's `spec.nats`, such as {"resources": {"requests": {"memory": "1Gi"}}}.
        keep: Leave the job at the end. It is complete, and its status remains.
        progress: Whether a line on stderr shows how the workers start.
        timeout_s: How long to wait for the first start of all workers, in seconds.
        learner_timeout_s: The job fails this many seconds after the last sign of this program, which was killed or lost
            its network for good; 0: never.

    Raises:
        JobInvalid: A value cannot be used. The message names it.
    """

    namespace: str | None = None
    context: str | None = None
    name: str | None = None
    image: str | None = None
    gpu: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    cpu: str | float | None = None
    memory: str | int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    nats: Mapping[str, Any] = field(default_factory=dict)
    keep: bool = False
    progress: bool = True
    timeout_s: float = 600.0
    learner_timeout_s: int = 600

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            if (value := plain(getattr(self, name))) is not None:
                number = kind is Quantity and type(value) in (int, float)
                try:
                    TypeAdapter(kind).validate_python(str(value) if number else value)
                except ValidationError as error:
                    raise JobInvalid(f"Cluster({name}=): {_message(error, value)}") from None
        whole_number(self.gpu, "Cluster(gpu=)", most=1024)
        whole_number(self.learner_timeout_s, "Cluster(learner_timeout_s=)", most=2**31 - 1)
        seconds(self.timeout_s, "Cluster(timeout_s=)")
        true_or_false(self.keep, "Cluster(keep=)")
        true_or_false(self.progress, "Cluster(progress=)")

    def spec(self) -> dict[str, Any]:
        """Return the fields of a job's spec that these settings set, in the words of YAML."""
        amounts = {"cpu": self.cpu, "memory": self.memory}
        resources: dict[str, Any] = {"requests": {name: str(amount) for name, amount in amounts.items() if amount}}
        if self.memory:
            resources["limits"] = {"memory": str(self.memory)}
        if self.gpu:
            resources["gpu"] = {"count": self.gpu, "resource": self.gpu_resource}
        spec = {"resources": resources, "template": dict(self.template), "nats": dict(self.nats)}
        spec["failure"] = {"learnerTimeoutSeconds": self.learner_timeout_s} if self.learner_timeout_s else {}
        kept = {} if self.keep else {"ttlSecondsAfterFinished": _TTL_S}
        return spec | kept | ({"image": self.image} if self.image else {})


def _message(error: ValidationError, value: object) -> str:
    message = error.errors(include_url=False)[0]["msg"]
    return message if "`" in message else f"{message}, got {shown(value)}"

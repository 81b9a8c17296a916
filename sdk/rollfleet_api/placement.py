"""The parts of a job about its pods: code, resources, the learner, scaling, failures. Most apply to clusters only."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from rollfleet_api.fields import FreeForm, Matching, Model, Quantity, Rule

MAX_WORKERS: Final = 65_536
"""The most workers of a job: trajectory ids have 16 bits for them, and host names 5 digits."""

ObjectName = Annotated[
    str,
    Matching(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        253,
        "expected the name of a ConfigMap: up to 253 of a-z, 0-9, `-` and `.`, e.g. `my-code`",
    ),
]
"""The name of a Kubernetes object (RFC 1123 subdomain)."""

ResourceName = Annotated[
    str,
    Matching(
        r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        317,
        "expected the name of a resource, e.g. `nvidia.com/gpu` or `nvidia.com/mig-1g.10gb`",
    ),
]
"""The name of a resource of nodes."""

Image = Annotated[str, Matching(r"^[^\s]+$", 1024, "expected the name of an image, e.g. `my-org/my-worker:1.0`")]
"""The name of a container image."""


class SourceSpec(Model):
    """Python files for the workers, as an alternative to building an image."""

    config_map: ObjectName = Field(
        description="A ConfigMap in the job's namespace. Its `.py` files are put on the workers' import path.",
        examples=["my-code"],
    )


class GpuSpec(Model):
    """The GPUs of each pod."""

    count: int = Field(default=0, ge=0, le=1024, description="GPUs of each pod. 0: none, and it sees none.")
    resource: ResourceName = Field(
        default="nvidia.com/gpu",
        description="The resource name of the GPUs, e.g. `nvidia.com/mig-1g.10gb` or `amd.com/gpu`.",
    )


class ResourcesSpec(Model):
    """The resources of each worker, or of each environment server."""

    gpu: GpuSpec = Field(default=GpuSpec(), description="The GPUs of each pod.")
    requests: dict[str, Quantity] = Field(
        default={}, description='Resources reserved for each pod, e.g. `{cpu: "4", memory: 8Gi}`.'
    )
    limits: dict[str, Quantity] = Field(default={}, description="The most resources that each pod may use.")


class LearnerSpec(Model):
    """The trainer as a pod of the job, with the learner's credentials mounted."""

    template: FreeForm = Field(
        description="The pod template: `{spec: {containers: [...]}}`. The first container is the learner.",
        examples=["{spec: {containers: [...]}}"],
    )


class NatsResourcesSpec(Model):
    """The resources of the job's NATS server."""

    requests: dict[str, Quantity] = Field(
        default={}, description="Resources reserved for it. Default: the chart's, `{cpu: 50m, memory: 64Mi}`."
    )
    limits: dict[str, Quantity] = Field(
        default={},
        description="The most resources that it may use. It holds up to 32 MiB for each worker that is slow to read.",
    )


class NatsService(StrEnum):
    """How the server is reached."""

    CLUSTER_IP = "ClusterIP"
    LOAD_BALANCER = "LoadBalancer"


class NatsSpec(Model):
    """The job's NATS server, a pod of its own. On one machine it is a process, and these fields do not apply."""

    resources: NatsResourcesSpec = Field(default=NatsResourcesSpec(), description="The resources of the server.")
    template: FreeForm = Field(
        default={},
        description="Changes to the server's pod template: tolerations, node selectors. Its priority class and pull "
        "secrets are those of the workers' `template`, unless they are set here.",
    )
    service: NatsService = Field(
        default=NatsService.CLUSTER_IP,
        strict=False,
        description="The type of its Service. `LoadBalancer`: learners outside of the cluster reach it without the API "
        "server.",
    )


class AutoscaleSpec(Model):
    """The range and the target by which the operator sets the number of workers."""

    RULES = (
        Rule(
            cel="self.minWorkers <= self.maxWorkers",
            message="must not exceed `autoscale.maxWorkers`",
            holds=lambda scale: scale.min_workers <= scale.max_workers,
            field="minWorkers",
        ),
    )

    min_workers: int = Field(default=1, ge=1, le=MAX_WORKERS, description="The fewest workers.")
    max_workers: int = Field(ge=1, le=MAX_WORKERS, description="The most workers.", examples=["16"])
    target_wait: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Fraction of its time that the learner's loop may wait for data. Above it the operator adds "
        "workers; well below it the operator removes some.",
    )


class EnvironmentFailuresSpec(Model):
    """The treatment of a single environment that raises, hangs or dies: it is replaced, and the others go on.

    Its episode ends at its last complete transition, truncated, with `("collector", "failed")`.
    """

    step_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="Seconds after which a step counts as failed. Only with `env.vectorization: Async`: the process of "
        "an environment can be ended. Default: no limit.",
    )
    reset_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="The same for a reset, and for making the environment that replaces another.",
    )
    check_observations: bool = Field(
        default=False,
        description="Count an observation with NaN or infinity, or outside of its space, as a failure, too. "
        "Default: false.",
    )
    max_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Fail the job when more than this share of a worker's last 100 episodes failed, and at least 10. "
        "Default: 0.5.",
    )


class FailureSpec(Model):
    """The treatment of workers that fail, hang or fall silent."""

    KEEPS_WORKERS = ("pending_deadline_seconds", "suspect_after_seconds", "learner_timeout_seconds")

    max_restarts_per_worker: int = Field(
        default=10,
        ge=0,
        le=32_767,
        description="Restarts of one worker before the job fails: 10 within five hours, or in proportion. Earlier "
        "restarts, and disruptions by the cluster, do not count.",
    )
    pending_deadline_seconds: int = Field(
        default=600,
        ge=0,
        le=2**31 - 1,
        description="Seconds that a worker may wait for a node, and then again to start on it, before the job fails; "
        "0: no limit. Once all workers were ready, a waiting worker makes the job `Degraded` and does not fail it.",
    )
    suspect_after_seconds: int = Field(
        default=10,
        ge=3,
        le=86_400,
        description="Report a worker as stuck after this many seconds in one environment step or without a heartbeat. "
        "In mode `Sync`, rounds do not wait for a silent worker.",
    )
    learner_timeout_seconds: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Fail the job this many seconds after the last heartbeat of its learner, or after the job's "
        "creation if no learner came. The time starts again when the job is suspended or resumed, also by Kueue, "
        "and when NATS or the operator comes back. 0: no limit.",
    )
    environments: EnvironmentFailuresSpec | None = Field(
        default=None,
        description="Replace an environment that fails, and go on with the others; `{}`: without time limits. "
        "Default: its worker starts again.",
    )

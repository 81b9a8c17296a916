"""The job as a type: `CollectorJob`, as a user writes it in YAML and as the CRD's schema says.

Attributes are snake_case, YAML is camelCase. The parts are defined in `acting`, `collection`, `placement`, `metadata`
and `status`; import them from here.
"""

from typing import Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rollfleet_api.acting import (
    Activation,
    Backend,
    EnvSpec,
    MlpSpec,
    PolicySpec,
    RandomSpec,
    Vectorization,
    WrapperSpec,
)
from rollfleet_api.collection import (
    CatResults,
    CollectSpec,
    DeliverySpec,
    Exploration,
    Mode,
    Precision,
    Storage,
    StragglersSpec,
    WeightsSpec,
    WhenFull,
)
from rollfleet_api.fields import FreeForm, Model, refusal, rule
from rollfleet_api.metadata import DNS_LABEL_PATTERN, MAX_NAME_LENGTH, NAME_TOO_LONG, Metadata
from rollfleet_api.placement import (
    MAX_WORKERS,
    AutoscaleSpec,
    FailureSpec,
    GpuSpec,
    Image,
    LearnerSpec,
    ResourcesSpec,
    SourceSpec,
)
from rollfleet_api.status import CollectorJobStatus

__all__ = [
    "API_VERSION",
    "KIND",
    "MAX_WORKERS",
    "Activation",
    "AutoscaleSpec",
    "Backend",
    "CatResults",
    "CollectSpec",
    "CollectorJob",
    "CollectorJobSpec",
    "CollectorJobStatus",
    "DeliverySpec",
    "EnvSpec",
    "Exploration",
    "FailureSpec",
    "GpuSpec",
    "LearnerSpec",
    "Metadata",
    "MlpSpec",
    "Mode",
    "PolicySpec",
    "Precision",
    "RandomSpec",
    "ResourcesSpec",
    "SourceSpec",
    "Storage",
    "StragglersSpec",
    "Vectorization",
    "WeightsSpec",
    "WhenFull",
    "WrapperSpec",
]

API_VERSION: Final = "rollfleet.dev/v1alpha1"
KIND: Final = "CollectorJob"

SPARE_LAG: Final = 2
"""Versions that a batch may lag besides those of the workers, where the user says nothing: broadcasts take time."""

_FRAMES = "self.collect.framesPerBatch"
_ENVS = "self.env.numEnvs"

_FIXED_MODE = "the mode of a job is fixed: its learner waits for batches in one way; delete the job, and create it anew"
_FIXED_STORAGE = "NATS cannot move what it keeps; delete the job, and create it anew"
_FIXED_END = "the job is complete, and does nothing any more; delete it, and create it anew"
_THRESHOLD_OF_SYNC = "only mode Sync waits for all workers; remove `stragglers`, or write `mode: Sync`"


def frames_problem(frames_per_batch: int, num_envs: int) -> tuple[str, str] | None:
    """What is wrong between the size of a batch and the environments: the path from the spec, and the message."""
    if frames_per_batch % num_envs == 0:
        return None
    envs = f"the {num_envs} environments of a worker (`env.numEnvs`)"
    below = frames_per_batch // num_envs * num_envs
    if not below:
        message = f"{frames_per_batch} is less than {envs}; write {num_envs} or more"
    else:
        message = f"{frames_per_batch} is no multiple of {envs}; write {below} or {below + num_envs}"
    return ("collect.framesPerBatch", message)


class CollectorJobSpec(Model):
    """What a job is to do."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    f"{_FRAMES} >= {_ENVS}",
                    "must be at least `env.numEnvs`",
                    field=".collect.framesPerBatch",
                    message_cel="'%d is less than the %d environments of a worker (`env.numEnvs`); write %d or more'"
                    f".format([{_FRAMES}, {_ENVS}, {_ENVS}])",
                ),
                rule(
                    f"{_FRAMES} < {_ENVS} || {_FRAMES} % {_ENVS} == 0",
                    "must be a multiple of `env.numEnvs`",
                    field=".collect.framesPerBatch",
                    message_cel="'%d is no multiple of the %d environments of a worker (`env.numEnvs`); write %d or %d'"
                    f".format([{_FRAMES}, {_ENVS}, {_FRAMES} / {_ENVS} * {_ENVS}, "
                    f"({_FRAMES} / {_ENVS} + 1) * {_ENVS}])",
                ),
                rule(
                    "self.mode == 'Sync' || self.stragglers.threshold >= 1.0",
                    _THRESHOLD_OF_SYNC,
                    field=".stragglers.threshold",
                ),
                # `oldSelf` makes a rule one of changes: it is not asked when a job is created.
                rule("self.mode == oldSelf.mode", _FIXED_MODE, field=".mode"),
                rule("self.delivery.storage == oldSelf.delivery.storage", _FIXED_STORAGE, field=".delivery.storage"),
            ]
        }
    )

    workers: int = Field(
        default=1,
        ge=1,
        le=MAX_WORKERS,
        description="How many workers collect. With `autoscale` the operator goes on from there.",
    )
    autoscale: AutoscaleSpec | None = Field(
        default=None, description="Has the operator choose `workers`. Default: nobody but whoever writes it does."
    )
    mode: Mode = Field(
        default=Mode.ASYNC,
        strict=False,
        description="How batches are gathered. `Sync`: every worker collects a part on the same version of the "
        "weights, and the iterator yields the parts together. `Async`: each worker's are yielded as they come.",
    )
    env: EnvSpec = Field(description="The environments of each worker.", examples=["{id: CartPole-v1}"])
    policy: PolicySpec = Field(description="What the workers act by.", examples=["{mlp: {}}"])
    source: SourceSpec | None = Field(default=None, description="Python files for the workers.")
    collect: CollectSpec = Field(description="How much is collected, and how.", examples=["{framesPerBatch: 2048}"])
    weights: WeightsSpec = Field(default=WeightsSpec(), description="How weights get to the workers.")
    delivery: DeliverySpec = Field(default=DeliverySpec(), description="How batches get to the learner.")
    stragglers: StragglersSpec = Field(default=StragglersSpec(), description="What is done about slow workers.")
    resources: ResourcesSpec = Field(default=ResourcesSpec(), description="What each worker asks for.")
    image: Image | None = Field(default=None, description="The workers' container image. Default: the chart's.")
    template: FreeForm = Field(
        default={},
        description="Laid over the workers' pod template: tolerations, node selectors, resource claims, volumes.",
    )
    learner: LearnerSpec | None = Field(default=None, description="The trainer, where it is to be a pod of the job.")
    suspend: bool = Field(default=False, description="Stops the workers and frees what they use, until it is false.")
    failure: FailureSpec = Field(default=FailureSpec(), description="What is made of workers in trouble.")
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Seconds after its end, well or not, when the job is deleted. Default: never.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = frames_problem(self.collect.frames_per_batch, self.env.num_envs)
        found = [wrong] if wrong else []
        if self.mode is not Mode.SYNC and self.stragglers.threshold < 1:
            found.append(("stragglers.threshold", _THRESHOLD_OF_SYNC))
        if found:
            raise refusal(*found)
        return self

    @property
    def steps_per_batch(self) -> int:
        """T, the steps that each worker's environments take for one batch, where all workers take part."""
        return self.steps_among(self.workers)

    @property
    def weights_max_lag(self) -> int:
        """`weights.max_lag` with its default worked out: versions that a batch may be behind."""
        return self.max_lag_among(self.workers)

    def steps_among(self, workers: int) -> int:
        """T with so many workers.

        In Sync mode `collect.frames_per_batch` is split over them and rounded up; in Async mode it is one worker's.
        """
        frames = self.collect.frames_per_batch
        if self.mode is Mode.SYNC:
            return -(-frames // (workers * self.env.num_envs))
        return frames // self.env.num_envs

    def max_lag_among(self, workers: int) -> int:
        """Versions that a batch may be behind with so many workers, unless the job says it."""
        return 2 * workers + SPARE_LAG if self.weights.max_lag is None else self.weights.max_lag


class CollectorJob(Model):
    """A set of workers that collect reinforcement-learning data for one learner."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
                    f"the name is too long: {NAME_TOO_LONG}",
                ),
                rule(
                    f"self.metadata.name.matches(r'{DNS_LABEL_PATTERN}')",
                    "the name may only hold a-z, 0-9 and `-`, and must begin and end with a letter or digit",
                ),
                rule(
                    "!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase != 'Complete' "
                    "|| self.spec == oldSelf.spec",
                    _FIXED_END,
                ),
            ]
        }
    )

    api_version: Literal["rollfleet.dev/v1alpha1"] = Field(default=API_VERSION, description="`rollfleet.dev/v1alpha1`.")
    kind: Literal["CollectorJob"] = Field(default=KIND, description="`CollectorJob`.")
    metadata: Metadata = Field(description="The job's name, and what Kubernetes keeps.", examples=["{name: cartpole}"])
    spec: CollectorJobSpec = Field(description="What the job is to do.")
    status: CollectorJobStatus | None = Field(default=None, description="The observed state, written by the operator.")

    @property
    def key(self) -> str:
        """`namespace/name`: what tells jobs apart."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def dump(self) -> dict[str, object]:
        """The job as plain data for YAML or JSON, in camelCase and without what is default anyway.

        `CollectorJob.model_validate(job.dump()) == job` holds for every job.
        """
        written = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        return {"apiVersion": self.api_version, "kind": self.kind, **written}

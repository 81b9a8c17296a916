"""The status of a job, written by the operator. It is output only: nothing is decided by it.

Unknown fields are ignored, unlike in the spec: a newer operator may write more than this version knows.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BeforeValidator, ConfigDict, Field

from rollfleet_api.fields import Model

UNSEEN: Final = -1
"""The observed generation of a job that no operator has seen: without one, tools take it for healthy."""


class Phase(StrEnum):
    """A job's state in one word, for people; programs read the conditions."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The aspect of a job that a condition describes."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    COMPLETE = "Complete"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    STALLED = "Stalled"


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class StatusModel(Model):
    """A part of the status."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """One aspect of the job's state, as Kubernetes writes it."""

    # Not `ConditionType`: other controllers (Kueue, for one) may add conditions of their own.
    type: str = Field(max_length=316, description="The aspect of the job, e.g. `Ready`.")
    status: ConditionStatus = Field(strict=False, description="Whether it holds.")
    reason: str = Field(default="", max_length=1024, description="The reason in one CamelCase word.")
    message: str = Field(default="", max_length=32_768, description="The reason in a sentence.")
    last_transition_time: str | None = Field(default=None, description="When `status` last changed (RFC 3339).")
    observed_generation: int | None = Field(default=None, description="Generation of the spec that it describes.")


class WorkersStatus(StatusModel):
    """The job's workers."""

    desired: int = Field(default=0, ge=0, description="Number of workers that should run.")
    ready: int = Field(default=0, ge=0, description="Number of workers that run and send heartbeats.")


class EnvServersStatus(StatusModel):
    """The job's environment servers."""

    desired: int = Field(default=0, ge=0, description="Number of servers that should run.")
    ready: int = Field(default=0, ge=0, description="Number of servers that accept connections.")


class BatchesStatus(StatusModel):
    """Counts of batches."""

    delivered: int = Field(default=0, ge=0, description="Batches that the learner has taken.")
    dropped: int = Field(default=0, ge=0, description="Collected batches that were not delivered: too old, or lost.")


class WaitsStatus(StatusModel):
    """Time spent waiting. It, and `bottleneck`, alone are written every 30 seconds at most."""

    learner_seconds: int = Field(
        default=0, ge=0, description="Seconds that the learner's loop has waited for data, since the learner connected."
    )
    workers_for_learner_seconds: int = Field(
        default=0,
        ge=0,
        description="Seconds that the workers have waited until the learner took earlier batches, or began a round.",
    )
    workers_for_weights_seconds: int = Field(
        default=0, ge=0, description="Seconds that the workers have waited for newer weights."
    )
    workers_for_environments_seconds: int = Field(
        default=0, ge=0, description="Seconds that the workers' environments have taken. 0: unknown, as with TorchRL's."
    )


class EpisodeStatistic(StatusModel):
    """A number of the last 100 episodes that have it, rounded to four digits."""

    mean: float = Field(description="Its mean.")
    min: float = Field(description="Its smallest value.")
    max: float = Field(description="Its greatest value.")
    count: int = Field(ge=0, description="Number of these episodes.")


class EvaluationStatus(StatusModel):
    """The newest evaluation."""

    version: int = Field(default=0, ge=0, description="The version of the weights.")
    mean_return: float | None = Field(default=None, description="Mean return of the episodes, to four digits.")
    episodes: int = Field(default=0, ge=0, description="Number of episodes.")


class CollectorJobStatus(StatusModel):
    """The observed state of a job."""

    observed_generation: Annotated[int | None, BeforeValidator(lambda seen: None if seen == UNSEEN else seen)] = Field(
        default=None, description="Generation of the spec that it describes; -1: of none yet."
    )
    phase: Phase | None = Field(default=None, strict=False, description="The job's state in one word.")
    conditions: list[Condition] = Field(
        default=[],
        description=f"The job's state in detail, for `kubectl wait`: {', '.join(ConditionType)}.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    workers: WorkersStatus = Field(default=WorkersStatus(), description="The job's workers.")
    servers: EnvServersStatus | None = Field(default=None, description="The servers of `env.servers`, of all workers.")
    selector: str | None = Field(default=None, description="The label selector of the workers' pods, for autoscalers.")
    gpus: int = Field(default=0, ge=0, description="GPUs in use by the running workers.")
    frames: int = Field(default=0, ge=0, description="Frames that the learner has taken.")
    frames_per_second: float = Field(default=0.0, ge=0, description="Frames per second over the last 30 seconds.")
    mean_return: float | None = Field(
        default=None, description="Mean return of the last 100 episodes, rounded to four digits."
    )
    episode_statistics: dict[str, EpisodeStatistic] = Field(
        default={},
        description="Numbers of the last episodes by name: `return`, `length` in frames, `last_version` (the version "
        "that they ended on), and the numbers in their last infos.",
    )
    episodes: int = Field(default=0, ge=0, description="Episodes that have ended since the learner connected.")
    evaluation: EvaluationStatus | None = Field(
        default=None, description="The newest result of `spec.evaluation`, since the learner connected."
    )
    non_finite: int = Field(default=0, ge=0, description="Frames and versions of the weights with NaN or infinity.")
    failed_episodes: dict[str, int] = Field(
        default={},
        description="Episodes that a failure of their environment ended since the learner connected, by the class of "
        "its error; see `spec.failure.environments`.",
    )
    newest_failure: str | None = Field(
        default=None, description="The newest of these failures, with its worker and its environment."
    )
    lag: int = Field(default=0, ge=0, description="Versions between the newest one and that of the last batch.")
    waits: WaitsStatus = Field(default=WaitsStatus(), description="Time spent waiting.")
    bottleneck: str = Field(
        default="",
        description="Who waited for whom over the last 30 seconds, which environment servers are slow, and what would "
        "make the job faster. Empty: unknown.",
    )
    published_version: int | None = Field(default=None, description="The newest version of the weights.")
    applied_version: int | None = Field(default=None, description="The oldest version that a worker still uses.")
    batches: BatchesStatus = Field(default=BatchesStatus(), description="Counts of batches.")
    next_incarnation: int = Field(
        default=0, ge=0, description="Greater than the number of each incarnation of a worker."
    )
    env_version: int = Field(
        default=0, ge=0, description="The version of the environments' settings, `set_env`; 0: none was set."
    )
    restarts: int = Field(default=0, ge=0, description="Restarts of all workers.")
    ready_time: str | None = Field(default=None, description="Time when all workers were first ready (RFC 3339).")
    start_time: str | None = Field(default=None, description="Time of the workers' first start (RFC 3339).")
    completion_time: str | None = Field(
        default=None, description="Time of the job's end, successful or not (RFC 3339)."
    )
    last_error: str | None = Field(default=None, description="The newest error of a worker, with the worker's index.")

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of a type. None: the status has none."""
        return next((each for each in self.conditions if each.type == kind), None)

    def held(self, kind: ConditionType) -> Condition | None:
        """Return the condition of a type if it is true."""
        found = self.condition(kind)
        return found if found and found.status is ConditionStatus.TRUE else None

    def has_ended(self, generation: int | None) -> bool:
        """Return whether the job has ended with this generation of its spec: nothing of it will start.

        A failed job whose spec has changed since is tried again.
        """
        failed = self.held(ConditionType.FAILED)
        return bool(self.held(ConditionType.COMPLETE) or (failed and failed.observed_generation == generation))

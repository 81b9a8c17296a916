"""How much is collected, and how it gets to the learner: the same on one machine and on a cluster."""

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from rollfleet_api.fields import MAX_COUNT, Entrypoint, Model, Quantity, refusal, rule
from rollfleet_api.quantity import parse_bytes

MAX_FRAMES_PER_BATCH: Final = 2**31 - 1

MIN_DELIVERY_BYTES: Final = 2**20
"""The smallest stream: it must hold a chunk."""


class Mode(StrEnum):
    """How the workers' batches are gathered."""

    SYNC = "Sync"
    ASYNC = "Async"


class Exploration(StrEnum):
    """How an action is taken from the policy's distribution."""

    RANDOM = "Random"
    MODE = "Mode"
    MEAN = "Mean"
    DETERMINISTIC = "Deterministic"


class CatResults(StrEnum):
    """How the workers' shares are put together in mode Sync."""

    ENVS = "Envs"
    TIME = "Time"
    STACK = "Stack"


class Precision(StrEnum):
    """How weights are written on the wire."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Storage(StrEnum):
    """Where the NATS server keeps batches."""

    FILE = "File"
    MEMORY = "Memory"


class WhenFull(StrEnum):
    """What happens to a batch that finds the stream full."""

    BLOCK = "Block"
    DROP_OLDEST = "DropOldest"


_WHOLE_TRAJECTORIES = (
    "whole trajectories end by themselves, and `setTruncated` has nothing to mark in them; remove `setTruncated` or "
    "`trajsPerBatch`"
)
_NO_SECOND_EPISODE = (
    "with `resetWhenDone: false` an environment ends one episode a batch at most, so that `trajsPerBatch` may never be "
    "reached, and `resetAtEachIter` would reset the others too; remove one of them"
)


class CollectSpec(Model):
    """How much is collected, and how."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!has(self.setTruncated) || !self.setTruncated || self.trajsPerBatch == 0",
                    _WHOLE_TRAJECTORIES,
                    field=".setTruncated",
                ),
                rule(
                    "!has(self.resetWhenDone) || self.resetWhenDone || "
                    "(self.trajsPerBatch == 0 && !self.resetAtEachIter)",
                    _NO_SECOND_EPISODE,
                    field=".resetWhenDone",
                ),
            ]
        }
    )

    frames_per_batch: int = Field(
        ge=1,
        le=MAX_FRAMES_PER_BATCH,
        description="Frames of what the learner's iterator yields: from all workers together in mode `Sync`, from one "
        "worker in mode `Async`. A multiple of `env.numEnvs`.",
        examples=[2048],
    )
    total_frames: int = Field(
        default=0, ge=0, le=MAX_COUNT, description="Frames after which the job is complete; 0: it has no end."
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Seeds every environment, action space and torch generator of every worker, each differently.",
    )
    init_random_frames: int = Field(
        default=0, ge=0, le=MAX_COUNT, description="Frames at the job's beginning, of all workers, with random actions."
    )
    max_frames_per_traj: int = Field(
        default=0, ge=0, le=MAX_COUNT, description="Frames after which an episode is truncated; 0: no limit."
    )
    exploration: Exploration = Field(
        default=Exploration.RANDOM,
        strict=False,
        description="How actions are taken from the policy's distribution: `Random` samples, `Mode` and `Mean` take "
        "these, `Deterministic` takes the mode where there is one, else the mean.",
    )
    set_truncated: bool = Field(
        default=False,
        description="Mark the last frame of a batch as truncated where its episode goes on, for learners that look at "
        "one batch alone.",
    )
    reset_at_each_iter: bool = Field(default=False, description="Begin new episodes in each batch.")
    reset_when_done: bool = Field(
        default=True,
        description="Begin a new episode where one has ended. Otherwise the environment waits for the next batch, and "
        "what is left of its row is padding.",
    )
    step_count: bool = Field(default=False, description="Put `step_count` into the batch: frames since the reset.")
    is_init: bool = Field(default=False, description="Put `is_init` into the batch: the first frame of an episode.")
    trajs_per_batch: int = Field(
        default=0,
        ge=0,
        le=MAX_FRAMES_PER_BATCH,
        description="Batches of so many whole trajectories from each worker, one in a row, padded, with a mask; 0: of "
        "`framesPerBatch` frames.",
    )
    cat_results: CatResults = Field(
        default=CatResults.ENVS,
        strict=False,
        description="How the workers' shares of a `Sync` batch are put together: `Envs` one below the other, `Time` "
        "one after the other, `Stack` along a new first dimension.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        found = []
        if self.set_truncated and self.trajs_per_batch:
            found.append(("setTruncated", _WHOLE_TRAJECTORIES))
        if not self.reset_when_done and (self.trajs_per_batch or self.reset_at_each_iter):
            found.append(("resetWhenDone", _NO_SECOND_EPISODE))
        if found:
            raise refusal(*found)
        return self


class WeightsSpec(Model):
    """How the policy's weights get from the learner to the workers."""

    interval: int = Field(
        default=1,
        ge=0,
        le=MAX_COUNT,
        description="The iterator broadcasts the weights after so many batches; 0: only when the learner says so.",
    )
    max_lag: int | None = Field(
        default=None,
        ge=0,
        le=MAX_COUNT,
        description="Versions that a batch may be behind the newest before it is dropped. "
        "Default: twice the number of workers, and 2 more.",
    )
    precision: Precision = Field(
        default=Precision.FLOAT32,
        strict=False,
        description="How weights are written on the wire; `bfloat16` halves the bytes.",
    )
    scheme: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that makes the `WeightScheme` of learner and workers from `precision`: which "
        "weights travel, and in which form. Default: all of them, as they are.",
        examples=["rollfleet.schemes:Trained"],
    )


def _stream_size(text: str) -> str:
    if parse_bytes(text) < MIN_DELIVERY_BYTES:
        raise refusal(("", f"`{text}` is {parse_bytes(text)} bytes; the least is `1Mi`"))
    return text


class DeliverySpec(Model):
    """How batches get from the workers to the learner."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    # `has` because the API server checks the default `{}` before it fills in what is below.
                    "!has(self.maxBytes) || (type(self.maxBytes) == string "
                    "? quantity(self.maxBytes).compareTo(quantity('1Mi')) >= 0 "
                    f": self.maxBytes >= {MIN_DELIVERY_BYTES})",
                    "the least is `1Mi`",
                    field=".maxBytes",
                )
            ]
        }
    )

    storage: Storage = Field(
        default=Storage.FILE,
        strict=False,
        description="Where NATS keeps batches until the learner has them: `File` outlives NATS, `Memory` does not.",
    )
    max_bytes: Annotated[Quantity, AfterValidator(_stream_size)] = Field(
        default="4Gi", description="Bytes of batches that NATS keeps for this job, as a quantity such as `4Gi`."
    )
    when_full: WhenFull = Field(
        default=WhenFull.BLOCK,
        strict=False,
        description="What happens when `maxBytes` are used up: with `Block` the workers wait, with `DropOldest` the "
        "oldest batch is dropped.",
    )
    max_batches_ahead: int = Field(
        default=1, ge=1, le=1024, description="Batches of one worker that may wait for the learner before it waits too."
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=5,
        description="NATS servers that each keep a copy of all that the job stores. Of 3, one may fail; more than 1 "
        "need a NATS cluster of so many.",
    )

    @property
    def limit_bytes(self) -> int:
        """`max_bytes` as a number of bytes."""
        return parse_bytes(self.max_bytes)


class StragglersSpec(Model):
    """What is done about workers that are slower than the others (mode `Sync` only)."""

    threshold: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="The share of workers that closes a `Sync` batch; the rest stop at their next step. 1: all.",
    )

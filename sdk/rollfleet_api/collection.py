"""The parts of a job about its data: how much is collected, and how it reaches the learner."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from rollfleet_api.fields import MAX_COUNT, Entrypoint, Model, Rule

MAX_FRAMES_PER_BATCH: Final = 2**31 - 1


class Mode(StrEnum):
    """The way in which the workers' batches are gathered."""

    SYNC = "Sync"
    ASYNC = "Async"


class Exploration(StrEnum):
    """The way in which an action is taken from the policy's distribution."""

    RANDOM = "Random"
    MODE = "Mode"
    MEAN = "Mean"
    DETERMINISTIC = "Deterministic"


class NonFinite(StrEnum):
    """The answer to a value that no policy can be trained on."""

    WARN = "Warn"
    ERROR = "Error"
    IGNORE = "Ignore"


class CatResults(StrEnum):
    """The way in which the workers' fragments of a `Sync` batch are joined."""

    ENVS = "Envs"
    TIME = "Time"
    STACK = "Stack"


class TrajFormat(StrEnum):
    """The layout of whole trajectories in a batch."""

    PADDED = "Padded"
    CAT = "Cat"


class Precision(StrEnum):
    """The number format of weights in messages."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Compression(StrEnum):
    """The way in which batches are compressed on their way through NATS."""

    AUTO = "Auto"
    NONE = "None"
    LZ4 = "LZ4"
    ZSTD = "Zstd"


class CollectSpec(Model):
    """The amount of data, and the way in which it is collected.

    Example:
        >>> CollectSpec(frames_per_batch=2048).exploration.value
        'Random'
    """

    RULES = (
        Rule(
            cel="!has(self.setTruncated) || !self.setTruncated || self.trajsPerBatch == 0",
            message="whole trajectories have no cut frame for {setTruncated} to mark; remove {setTruncated} or "
            "{trajsPerBatch}",
            holds=lambda collect: not (collect.set_truncated and collect.trajs_per_batch),
            field="setTruncated",
        ),
        Rule(
            cel="!has(self.resetWhenDone) || self.resetWhenDone || (self.trajsPerBatch == 0 && !self.resetAtEachIter)",
            message="with {resetWhenDone:false} an environment ends at most one episode in a batch: {trajsPerBatch} "
            "may never be reached, and {resetAtEachIter} would also reset unfinished episodes; remove one of them",
            holds=lambda collect: (
                collect.reset_when_done or not (collect.trajs_per_batch or collect.reset_at_each_iter)
            ),
            field="resetWhenDone",
        ),
        Rule(
            cel="!has(self.trajFormat) || self.trajFormat == 'Padded' || self.trajsPerBatch > 0",
            message="{trajFormat} is the layout of whole trajectories; write {trajsPerBatch}, or remove it",
            holds=lambda collect: collect.traj_format is TrajFormat.PADDED or collect.trajs_per_batch > 0,
            field="trajFormat",
        ),
    )
    KEEPS_WORKERS = ("total_frames", "init_random_frames", "cat_results")
    RESTARTS_LEARNER = ("cat_results", "traj_format")

    frames_per_batch: int = Field(
        ge=1,
        le=MAX_FRAMES_PER_BATCH,
        description="Frames in each item of the learner's iterator: from all workers together in mode `Sync`, from one "
        "worker in mode `Async`. A multiple of `env.numEnvs`, in mode `Sync` times `workers`.",
        examples=[2048],
    )
    total_frames: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Frames after which the job is complete, with a whole batch; 0: it never completes.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Seed of every environment, action space and torch generator. Each gets a different seed from it.",
    )
    init_random_frames: int = Field(
        default=0,
        ge=0,
        le=MAX_COUNT,
        description="Frames with random actions at the start of the job, from all workers together.",
    )
    max_frames_per_traj: int = Field(
        default=0, ge=0, le=MAX_COUNT, description="Frames after which an episode is truncated; 0: no limit."
    )
    exploration: Exploration = Field(
        default=Exploration.RANDOM,
        strict=False,
        description="How actions are taken from the policy's distribution. `Random`: sample it. `Mode`, `Mean`: take "
        "its mode or mean. `Deterministic`: take its mode if it has one, else its mean.",
    )
    set_truncated: bool = Field(
        default=False,
        description="Mark the last frame of each row of a batch as truncated, for learners that use each batch on its "
        "own. The episode continues, under the same trajectory id.",
    )
    reset_at_each_iter: bool = Field(default=False, description="Start new episodes in each batch.")
    reset_when_done: bool = Field(
        default=True,
        description="Start a new episode when one ends. If false, the environment waits for the next batch, and the "
        "rest of its row is padding.",
    )
    step_count: bool = Field(default=False, description="Add `step_count` to the batch: frames since the reset.")
    is_init: bool = Field(default=False, description="Add `is_init` to the batch: true in an episode's first frame.")
    trajs_per_batch: int = Field(
        default=0,
        ge=0,
        le=MAX_FRAMES_PER_BATCH,
        description="Whole trajectories in each worker's batch: one in each row, padded, with a mask. A trajectory "
        "that goes on over a batch has frames of several versions. 0: batches have `framesPerBatch` frames instead.",
    )
    traj_format: TrajFormat = Field(
        default=TrajFormat.PADDED,
        strict=False,
        description="The layout of the whole trajectories of a batch. `Padded`: one in each row. `Cat`: one after the "
        "other, without padding and mask.",
    )
    info_keys: tuple[Annotated[str, Field(pattern=".", max_length=256)], ...] = Field(
        default=(),
        strict=False,
        max_length=64,
        description="Keys of the environments' infos to put into the batch, under `next`, `info`: numbers or arrays of "
        "numbers, as float64. NaN: not reported in that step.",
        examples=[["success", "lives"]],
    )
    episode_metrics: tuple[Annotated[str, Field(pattern=".", max_length=100)], ...] = Field(
        default=("*",),
        strict=False,
        max_length=64,
        description="Numbers in the last info of an episode to count, by name: `*` stands for any text, and "
        "`outer.inner` is a value of a nested dict. Of more than 32 names the first ones count. `[]`: none.",
        examples=[["success", "score/*"]],
    )
    episode_label: str | None = Field(
        default=None,
        pattern=".",
        max_length=100,
        description="The key of a text or a whole number in the last info of an episode, such as the name of its task. "
        "Returns and metrics are counted for each of its values, too: the first 31, and `others`. Default: no label.",
        examples=["task"],
    )
    non_finite: NonFinite = Field(
        default=NonFinite.WARN,
        strict=False,
        description="The answer to NaN and infinity in observations, rewards and actions, to observations a million "
        "times outside of their space, and to NaN in weights. `Warn`: report the first one, and count all frames with "
        "one. `Error`: end the run at the first one. `Ignore`: look for none.",
    )
    init_fn: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that each worker calls, without arguments, before it makes its environments "
        "and its policy.",
        examples=["my_pkg.setup:init"],
    )
    pre_collect_hook: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that each worker calls before each batch, without arguments.",
        examples=["my_pkg.hooks:before"],
    )
    post_collect_hook: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that each worker calls with each batch that it has collected, a TensorDict "
        "`[envs, T]`.",
        examples=["my_pkg.hooks:after"],
    )
    cat_results: CatResults = Field(
        default=CatResults.ENVS,
        strict=False,
        description="How the workers' fragments of a `Sync` batch are joined. `Envs`: along the environments. `Time`: "
        "along time. `Stack`: along a new first dimension.",
    )


class WeightsSpec(Model):
    """The way of the policy's weights from the learner to the workers."""

    KEEPS_WORKERS = ("interval",)
    RESTARTS_LEARNER = ("precision", "scheme")

    interval: int = Field(
        default=1,
        ge=0,
        le=MAX_COUNT,
        description="Broadcast the weights after this many batches; 0: only when the learner asks for it.",
    )
    max_lag: int | None = Field(
        default=None,
        ge=0,
        le=MAX_COUNT,
        description="The most versions between the newest weights and those of a batch; an older batch is dropped. "
        "Default: twice the number of workers, plus 2.",
    )
    precision: Precision = Field(
        default=Precision.FLOAT32,
        strict=False,
        description="The number format of weights in messages; `bfloat16` halves their size.",
    )
    scheme: Entrypoint | None = Field(
        default=None,
        description="A `module:callable` that makes the `WeightScheme` of learner and workers from `precision`: it "
        "selects the weights to send, and their form. Default: all weights, unchanged.",
        examples=["rollfleet.schemes:Trained"],
    )


class DeliverySpec(Model):
    """The way of batches from the workers to the learner."""

    REMOVED = dict.fromkeys(
        ("storage", "maxBytes", "whenFull", "replicas"),
        "NATS keeps no batches: each worker keeps its own until the learner has taken them",
    )

    max_batches_ahead: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Batches of one worker that may wait for the learner; then the worker waits as well. The worker "
        "keeps them in its memory.",
    )
    compression: Compression = Field(
        default=Compression.AUTO,
        strict=False,
        description="How batches are compressed on their way through NATS, tensor by tensor, where that makes a tensor "
        "1.3 times smaller or more. `LZ4`: fast. `Zstd`: smaller, and slower. `Auto`: `LZ4`. Workers without "
        "NATS ignore it.",
    )


class StragglersSpec(Model):
    """The treatment of workers that are slower than the others (mode `Sync` only)."""

    threshold: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Fraction of workers that completes a `Sync` batch, rounded down to whole workers: 0.9 of 3 is 2. "
        "The others stop at their next step. 1: all.",
    )

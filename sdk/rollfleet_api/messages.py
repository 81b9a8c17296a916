"""The small messages of a job: JSON with types, each field checked on arrival.

Those about batches and weights on their way are in `transfers`. Any NATS client can read these messages:
`nats sub 'rollfleet.default.cartpole.>'`.
"""

import json
import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError, with_config

MAX_MESSAGE_BYTES = 1 << 20
MAX_CALL_BYTES = 1 << 18  # of the arguments or the result of a call, as JSON
MAX_SETTINGS_BYTES = 1 << 16  # of `set_env`, as JSON: control has them, once a second

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but for tabs and ends of lines
Text = Annotated[str, AfterValidator(lambda text: _CONTROL.sub("", text))]
"""A text of a worker, without what a terminal that shows it would obey."""
MAX_COUNT = 2**63 - 1
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Index = Annotated[int, Field(ge=0, le=2**16 - 1)]
Amount = Annotated[float, Field(ge=0, le=1e12)]
"""A time in seconds, or a rate: finite, so that readers can calculate with it."""
MOST_NUMBERS, LONGEST_NAME = 32, 100
MOST_STATISTICS = 256
Counts = Annotated[dict[Annotated[Text, Field(max_length=LONGEST_NAME)], Count], Field(max_length=MOST_NUMBERS)]
"""Counts by name."""
_STRICT = ConfigDict(strict=True, extra="ignore")

M = TypeVar("M")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(kind: type[M]) -> type[M]:
    """Make a message of a class: a dataclass whose fields pydantic checks."""
    return with_config(_STRICT)(dataclass(frozen=True, slots=True, kw_only=True)(kind))


class MessageInvalid(ValueError):
    """A message that does not have its type."""


class LearnerPhase(StrEnum):
    """The learner's order to the workers."""

    RUN = "Run"
    PAUSE = "Pause"
    COMPLETE = "Complete"


class WorkerState(StrEnum):
    """The present activity of a worker."""

    STARTING = "Starting"
    WAITING_FOR_WEIGHTS = "WaitingForWeights"
    WAITING_FOR_LEARNER = "WaitingForLearner"
    COLLECTING = "Collecting"
    PAUSED = "Paused"
    COMPLETE = "Complete"
    LEFT = "Left"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        """Whether a worker in this state has ended."""
        return self in (WorkerState.COMPLETE, WorkerState.LEFT, WorkerState.FAILED)


@message
class Call:
    """A call of a method on one worker.

    Attributes:
        number: A random number: the answer has it.
        method: `env.<name>`, of each environment, or `policy.<name>`.
        arguments: JSON: a list of positional arguments and a mapping of keyword arguments.
        process: Random number of the process that is called, over NATS: a later one does not answer; 0: any.
    """

    number: Count
    method: str
    arguments: str
    process: Index = 0


@message
class Answer:
    """A worker's answer to a call.

    Attributes:
        number: The number of the call.
        result: The result as JSON.
        error: The traceback, if the method raised; None: it returned.
    """

    number: Count
    result: str = "null"
    error: Text | None = None


@message
class Progress:
    """How far a job has come, as its learner last said. Workers name it in their heartbeats: a successor continues.

    Attributes:
        session: Number of the learner; each learner that takes over the job has a greater one.
        target: The newest version (see `versions`) that all workers were sent; 0: none.
        version: The count of the newest version that was sent to any worker; 0: none.
        frames: Frames returned to the learner's loop.
        batches: Batches returned to it.
        next_incarnation: Greater than the number of each incarnation of a worker.
        env_version: The newest version of the environments' settings; 0: none was set.
        complete: Whether the job is complete.
    """

    session: Count
    target: Count = 0
    version: Count = 0
    frames: Count = 0
    batches: Count = 0
    next_incarnation: Count = 0
    env_version: Count = 0
    complete: bool = False


@message
class Control:
    """The learner's instructions to its workers: sent when they change, once a second, and when a worker asks.

    Attributes:
        session: Number of the learner; each learner that takes over the job has a greater one.
        number: Number of the instructions in the session: greater ones replace these.
        phase: Collect; pause until the next control; or leave, because the job is complete.
        round: The current round: each worker collects one batch for each round. Always 0 in async mode.
        closed: Rounds up to this one need no more frames: a worker that collects for one stops at its next step.
        version: The oldest version (see `versions`) to collect with; 0: the policy has no weights, or none were sent.
        some: Pairs of a worker and a version: workers that were sent a newer version than the others.
        random_actions: Whether to take random actions (the first `init_random_frames` of a job).
        seed: The seed that the learner set; None: it has set none.
        static_seed: Whether all workers and environments get that very seed.
        seeding: Number of times that this learner has set the seed. On a new number workers recreate their episodes.
        interrupts: Number of batches that this learner has lost to exceptions. On a new number workers begin new
            episodes.
        origin: Added to workers' incarnations when ids and seeds are derived from them, so that a restored run
            continues the count.
        steps: T of this round in sync mode, which depends on the number of its workers; 0: as in the job.
        own_weights: The learner has no policy, and `weights.interval` is 0: until it sends weights on request, workers
            use the policy as its factory made it.
        env_version: The version of the environments' settings; 0: none was set.
        env_settings: They themselves, as JSON: for each worker and environment a dict, in turn.
        newest: The count of the newest version that was sent to any worker; 0: none.
        frames: Frames returned to the learner's loop.
        batches: Batches returned to it.
        next_incarnation: Greater than the number of each incarnation of a worker.
    """

    session: Count
    number: Count = 0
    phase: LearnerPhase
    round: Count
    version: Count
    some: tuple[tuple[Index, Count], ...] = ()
    closed: Count = 0
    random_actions: bool = False
    seed: Count | None = None
    static_seed: bool = False
    seeding: Count = 0
    interrupts: Count = 0
    origin: Count = 0
    steps: Count = 0
    own_weights: bool = False
    env_version: Count = 0
    env_settings: str = ""
    newest: Count = 0
    frames: Count = 0
    batches: Count = 0
    next_incarnation: Count = 0

    def version_for(self, worker: int | None) -> int:
        """Return the lowest version of the weights that a worker may collect with; None: that all have."""
        return max([self.version, *(version for each, version in self.some if each == worker)])

    @property
    def order(self) -> tuple[int, int]:
        """Session and number: of two messages, the greater is the newer."""
        return self.session, self.number

    @property
    def progress(self) -> Progress:
        """How far the job had come when this was sent."""
        return Progress(
            session=self.session,
            target=self.version,
            version=self.newest,
            frames=self.frames,
            batches=self.batches,
            next_incarnation=self.next_incarnation,
            env_version=self.env_version,
            complete=self.phase is LearnerPhase.COMPLETE,
        )


@message
class WorkerStatus:
    """A worker's heartbeat, once a second, after each batch, and at once for another state or version.

    That it collects again is in the next one. The sender sets the time.

    Attributes:
        version: The count of the version of the weights in use; 0: none yet.
        env_version: The version of the settings that its environments' next episodes have.
        frames: Frames collected by this incarnation.
        batches: Batches published by this incarnation.
        frames_per_second: Frames per second in the last batch.
        mean_return: Mean return of its last 100 episodes; None: no episode has ended yet.
        newest_failure: The newest failure of one of its environments; empty: none failed.
        failed_s: Its time by the sender's clock: seconds since the epoch.
        path: What of TorchRL's environment and policy runs on plain tensors, and what keeps the rest from it.
        error: The error that ended the worker, if `state` is Failed.
        fatal: Whether a restart would fail in the same way.
        in_step_s: Seconds since the start of the present environment step, on a monotonic clock; 0: between steps. It
            shows a step that hangs.
        waited_for_space_s: Seconds that this incarnation has waited until the learner took earlier batches.
        waited_for_weights_s: Seconds that this incarnation has waited for weights that were new enough.
        waited_for_round_s: Seconds that this incarnation has waited for the learner's next order, such as a round.
        waited_for_environments_s: Seconds that its environments have taken; 0: unknown, as with those of TorchRL.
        collecting_s: Seconds that its batches so far have taken, those of environments among them.
        slow_servers: The servers of its environments that answer many times slower than the others; empty: none.
        process: Random number of its process; over NATS.
        follows: The progress in the newest control message that it has; None: none; over NATS.
        time_s: The sender's clock: seconds since the epoch.
    """

    worker: Index
    incarnation: Count
    state: WorkerState = WorkerState.STARTING
    version: Count = 0
    env_version: Count = 0
    frames: Count = 0
    batches: Count = 0
    frames_per_second: Amount = 0.0
    mean_return: float | None = None
    newest_failure: Text = ""
    failed_s: Amount = 0.0
    path: Text = ""
    error: Text | None = None
    fatal: bool = False
    in_step_s: Amount = 0.0
    waited_for_space_s: Amount = 0.0
    waited_for_weights_s: Amount = 0.0
    waited_for_round_s: Amount = 0.0
    waited_for_environments_s: Amount = 0.0
    collecting_s: Amount = 0.0
    slow_servers: Text = ""
    process: Index = 0
    follows: Progress | None = None
    time_s: Amount = 0.0


@message
class Evaluation:
    """The result of whole episodes on one version of the weights.

    Attributes:
        version: The count of the version.
        episodes: Number of episodes.
        mean_return: Mean of the episodes' returns.
        min_return: Smallest of them.
        max_return: Greatest of them.
        std_return: Their standard deviation.
        mean_length: Mean length of the episodes, in frames.
        time_s: Time of its end by the evaluation worker's clock: seconds since the epoch.
    """

    version: Count
    episodes: Count
    mean_return: float
    min_return: float
    max_return: float
    std_return: float
    mean_length: float
    time_s: Amount


@message
class Statistic:
    """A number of the last 100 episodes that have it.

    Attributes:
        count: Number of these episodes.
    """

    mean: FiniteFloat
    min: FiniteFloat
    max: FiniteFloat
    count: Count


Statistics = Annotated[
    dict[Annotated[Text, Field(max_length=2 * LONGEST_NAME + 1)], Statistic], Field(max_length=MOST_STATISTICS)
]
"""Numbers of episodes by name: `return`, `length` in frames, `last_version`, and those that environments say.

`success/VALUE` is `success` of the episodes with this value of `episode_label`.
"""


@message
class LearnerStatus:
    """The heartbeat of a learner's process, once a second. Of several ranks, rank 0 counts the frames of all.

    Attributes:
        session: The session of this process: of two processes of one rank, the one with the greater has the job.
        process: Random number of the process.
        phase: What workers do.
        version: The count of the newest published version; 0: none yet.
        applied_version: The count of the oldest version that a present worker uses.
        frames: Frames returned to the loops of all ranks: rank 0 has the share of its workers.
        batches: Batches returned to the learner's loop.
        dropped: Batches that were collected but not returned: too old, repeated, lost, unreadable.
        next_incarnation: Greater than the number of each incarnation of a worker.
        env_version: The version of the environments' settings; 0: none was set.
        mean_return: Mean return of the last 100 episodes; None: no episode has ended yet.
        episode_statistics: The numbers of these episodes, by name.
        episodes: Episodes of this session that have ended.
        lag: Versions between the newest one and that of the last batch.
        non_finite: Frames of this session with NaN or infinity, and versions of the weights with NaN.
        failed_episodes: Episodes of this session that a failure of their environment ended, by the class of its error.
        waited_s: Seconds of this session that its loop has waited for data.
        evaluation: The evaluation of the newest version that has one; None: none yet.
        time_s: The sender's clock: seconds since the epoch.
    """

    session: Count
    process: Count = 0
    phase: LearnerPhase = LearnerPhase.RUN
    version: Count = 0
    applied_version: Count = 0
    frames: Count = 0
    batches: Count = 0
    dropped: Count = 0
    next_incarnation: Count = 0
    env_version: Count = 0
    mean_return: float | None = None
    episode_statistics: Statistics = field(default_factory=dict)
    lag: Count = 0
    episodes: Count = 0
    non_finite: Count = 0
    failed_episodes: Counts = field(default_factory=dict)
    waited_s: Amount = 0.0
    evaluation: Evaluation | None = None
    time_s: Amount = 0.0


def pack(message: Any) -> bytes:
    """Encode a message as JSON. Text that is not valid Unicode, such as parts of odd file names, becomes `?`.

    Example:
        >>> unpack(Call, pack(Call(number=7, method="env.seed", arguments="[[],{}]"))).method
        'env.seed'
    """
    text = json.dumps(message, default=_values, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="replace")


def _values(message: Any) -> dict[str, Any]:
    # `asdict` copies each value as well: it was half of a learner's time beside its workers
    return {each.name: getattr(message, each.name) for each in fields(message)}


def unpack(kind: type[M], data: bytes | memoryview) -> M:
    """Decode and check a message of the given type.

    Raises:
        MessageInvalid: The bytes are not JSON, or not of that type. The text names the field.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageInvalid(f"{kind.__name__} of {len(data)} bytes exceeds {MAX_MESSAGE_BYTES} bytes")
    try:
        found: M = _adapter(kind).validate_json(bytes(data))  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise MessageInvalid(f"{kind.__name__}: {where}: {first['msg']}") from None
    return found


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)

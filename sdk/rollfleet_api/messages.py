"""The small messages of a job: JSON, typed, checked field by field on arrival.

Batches and weights travel as raw bytes (see `rollfleet.wire.codec` and `rollfleet.weights.layout`); what describes
them is here. Whatever can read NATS can read these: `nats sub 'rollfleet.default.cartpole.>'`.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

MAX_MESSAGE_BYTES = 1 << 20

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Index = Annotated[int, Field(ge=0, le=2**16 - 1)]
_STRICT = ConfigDict(strict=True, extra="ignore", ser_json_inf_nan="constants")

M = TypeVar("M")


class MessageInvalid(ValueError):
    """A message that does not say what its type requires."""


class LearnerPhase(StrEnum):
    """What the learner wants of the workers."""

    RUN = "Run"
    PAUSE = "Pause"
    COMPLETE = "Complete"


class WorkerState(StrEnum):
    """What a worker is doing."""

    STARTING = "Starting"
    WAITING_FOR_WEIGHTS = "WaitingForWeights"
    WAITING_FOR_LEARNER = "WaitingForLearner"
    COLLECTING = "Collecting"
    PAUSED = "Paused"
    COMPLETE = "Complete"
    LEFT = "Left"
    FAILED = "Failed"


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the learner wants done now. The newest one holds; a worker that joins late reads it first.

    Attributes:
        session: Grows with each learner that takes the job.
        phase: Go on; collect nothing until told to go on; or leave: the job is complete.
        round: In sync mode, each worker collects one batch for each round. Always 0 in async mode.
        closed: Rounds up to this one need no more frames: who still collects for it stops at its next step.
        version: Collect with this version of the weights, or a newer one. 0: the policy has no weights, or nobody has
            sent any yet.
        some: The same for single workers, where they were sent a newer one: worker and version.
        random_actions: Act at random: the first frames of a job that asks for some.
        seed: What seeds come from since the learner said so; None: it has said nothing.
        seeding: How often this learner has said so. Who sees a new one begins its environments anew.
        origin: Added to workers' incarnations where ids and seeds come from them: a run that was restored counts on.
        steps: In sync mode, T of this round, which follows the number of its workers; 0: what the job says.
        own_weights: The learner has no policy, and sends weights only when told: until there are some, a policy that a
            factory has made acts on its own.
    """

    session: Count
    phase: LearnerPhase
    round: Count
    version: Count
    some: tuple[tuple[Index, Count], ...] = ()
    closed: Count = 0
    random_actions: bool = False
    seed: Count | None = None
    seeding: Count = 0
    origin: Count = 0
    steps: Count = 0
    own_weights: bool = False


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's lease: which incarnation holds it. An earlier one is void."""

    incarnation: Annotated[int, Field(ge=0, le=2**15 - 1)]
    host: str
    pid: Count


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeta:
    """What a batch says of itself, besides its tensors and its identity.

    Attributes:
        session: The learner's session whose control asked for it.
        round: The round that it belongs to (0 in async mode).
        version: The version that acted in every frame.
        frames: Frames in it.
    """

    session: Count
    round: Count
    version: Count
    frames: Count


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of a model, as it lies in a version's bytes."""

    model: str
    name: str
    dtype: str
    shape: tuple[Count, ...]


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete version: written after its bytes, so that no reader sees half of one.

    Attributes:
        session: The learner's. A later session's version is newer, whatever its number: a learner that was replaced
            may not know it yet.
        version: The learner's number for it, from 1.
        parameters: What lies in the bytes, in this order, each at a multiple of 16 bytes.
        total_bytes: Size of all chunks together.
        chunk_bytes: Size of each chunk but the last.
        checksum: xxh3 (64 bit) of all bytes, in hexadecimal.
    """

    session: Count
    version: Annotated[int, Field(ge=1, le=2**63 - 1)]
    parameters: tuple[Parameter, ...]
    total_bytes: Count
    chunk_bytes: Annotated[int, Field(ge=1, le=1 << 26)]
    checksum: str

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.total_bytes // self.chunk_bytes)


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker's heartbeat, once a second and whenever its state or version changes.

    Attributes:
        version: The version that it has applied; 0: none yet.
        frames: Frames collected by this incarnation.
        batches: Batches handed to NATS by this incarnation.
        frames_per_second: Over the last batch.
        mean_return: Of its last 100 episodes; None: no episode has ended yet.
        error: The error that ended it, when `state` is Failed.
        fatal: True: starting it again would fail in the same way.
        in_step_s: For how many seconds it has been in the present step of its environments, by its own clock that only
            goes forward; 0: in none. A step that hangs shows here.
        waited_for_room_s: For how many seconds this incarnation has waited until there was room for its batches, and
            NATS had them.
        waited_for_weights_s: For how many seconds it has waited for weights that were new enough.
        time_s: Its clock, seconds since the epoch.
    """

    worker: Index
    incarnation: Count
    state: WorkerState
    version: Count
    frames: Count
    batches: Count
    frames_per_second: float
    mean_return: float | None
    error: str | None = None
    fatal: bool = False
    in_step_s: float = 0.0
    waited_for_room_s: float = 0.0
    waited_for_weights_s: float = 0.0
    time_s: float

    @classmethod
    def starting(cls, worker: int, incarnation: int) -> Self:
        """Of a worker that has done nothing yet; whoever sends it sets the time."""
        return cls(
            worker=worker,
            incarnation=incarnation,
            state=WorkerState.STARTING,
            version=0,
            frames=0,
            batches=0,
            frames_per_second=0.0,
            mean_return=None,
            time_s=0.0,
        )


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerStatus:
    """The learner's heartbeat, once a second.

    Attributes:
        version: The newest version that it has published; 0: none yet.
        applied_version: The lowest version that a worker which is there has applied.
        frames: Frames handed to the learner's loop.
        batches: Batches handed to the learner's loop.
        dropped: Batches that were collected and not handed over: too old, repeated, pushed out of a full stream, lost.
        mean_return: Of the last 100 episodes; None: no episode has ended yet.
        lag: Versions between the newest and the one that acted in the last batch.
        waited_s: For how many seconds of this session its loop has waited for data; None: it does not tell.
        time_s: Its clock, seconds since the epoch.
    """

    session: Count
    version: Count
    applied_version: Count
    frames: Count
    batches: Count
    dropped: Count
    mean_return: float | None
    lag: Count
    waited_s: float | None = None
    time_s: float


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """What rank 0 of a learner must know of another rank: once a second, and with each batch.

    Attributes:
        rank: Which one.
        ranks: Of how many.
        life: Unlike that of any other process.
        session: Of rank 0, whose control message it follows; 0: it has heard none.
        round: The last round of that session that its loop was handed, or cannot be waited for; 0: none.
        enough: The last round of that session that may be closed as far as this rank goes; 0: none.
        frames: Handed to its loop.
        batches: Handed to its loop.
        dropped: Batches dropped, for whatever reason.
        restored: Frames that were handed to it in an earlier life, where it was told of them.
        left: It needs nothing any more.
    """

    rank: Index
    ranks: Annotated[int, Field(ge=1, le=2**16)]
    life: str
    session: Count = 0
    round: Count = 0
    enough: Count = 0
    frames: Count = 0
    batches: Count = 0
    dropped: Count = 0
    restored: Count = 0
    left: bool = False


def pack(message: Any) -> bytes:
    """A message as JSON. What is no Unicode in a text, such as a part of an odd file name, becomes `?`."""
    text = json.dumps(asdict(message), separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="replace")


def unpack(kind: type[M], data: bytes | memoryview) -> M:
    """A message of the given type.

    Raises:
        MessageInvalid: The bytes are no JSON, or not of that type. The text names the field.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageInvalid(f"{kind.__name__} of {len(data)} bytes is over {MAX_MESSAGE_BYTES} bytes")
    try:
        message: M = _adapter(kind).validate_json(bytes(data))  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise MessageInvalid(f"{kind.__name__}: {where}: {first['msg']}") from None
    return message


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)

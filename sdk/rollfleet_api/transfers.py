"""The messages about batches and weights on their way.

Batches and weights travel as raw bytes (see `rollfleet.wire.codec` and `rollfleet.weights.layout`); their descriptions
are here, and what both sides say about their chunks.
"""

from dataclasses import field
from typing import Annotated

from pydantic import Field

from rollfleet_api.messages import LONGEST_NAME, MOST_NUMBERS, Count, Counts, Index, Text, message

Flags = tuple[tuple[str, bool], ...]
"""The `training` flags of modules by their paths in the policy. A module that is missing follows the one around it."""


@message
class BatchMeta:
    """The description of a batch, besides its tensors and its identity.

    Attributes:
        session: Session of the learner that asked for it.
        round: Its round (0 in async mode).
        version: Version of the weights in every frame; see `versions`.
        frames: Number of frames.
        non_finite: Frames with NaN or infinity; see `non_finite` of `CollectSpec`.
        failed_episodes: Episodes that a failure of their environment ended, by the class of its error.
        labels: The values of `episode_label` of `CollectSpec`, by the numbers that its episodes have.
    """

    session: Count
    round: Count
    version: Count
    frames: Count
    non_finite: Count = 0
    failed_episodes: Counts = field(default_factory=dict)
    labels: Annotated[tuple[Annotated[Text, Field(max_length=LONGEST_NAME)], ...], Field(max_length=MOST_NUMBERS)] = ()


@message
class KeptBatch:
    """A batch that its worker keeps, because the learner has not taken it yet.

    Attributes:
        sequence: Its number in the worker's incarnation, from 0.
        nbytes: Its size.
        chunks: Number of its chunks.
        idle: Whether the worker has sent all chunks that it was to send.
    """

    sequence: Count
    nbytes: Count
    chunks: Annotated[int, Field(ge=1, le=1 << 26)]
    idle: bool


@message
class Offer:
    """What a worker keeps: sent once a second, and at once with a batch that the learner must ask for.

    Attributes:
        answers: Number of the last receipt that the worker has carried out before.
    """

    incarnation: Index
    process: Index
    answers: Count = 0
    batches: tuple[KeptBatch, ...]


@message
class Receipt:
    """The learner's answer to a worker.

    Attributes:
        process: Random number of the process that it answers.
        session: The learner's session: a worker that follows a later one ignores it. 0: a rank that has not heard of
            rank 0 yet.
        number: Its number, which the worker's offers name.
        incarnation: The number that the learner gives this process; None: it has one.
        taken: Numbers of batches that the worker need not keep any more.
        held: Numbers of complete batches that wait for the learner's loop.
        send: Chunks to send: the batch's number, the first chunk, and the one behind the last.
    """

    process: Index
    session: Count = 0
    number: Count = 0
    incarnation: Index | None = None
    taken: tuple[Count, ...] = ()
    held: tuple[Count, ...] = ()
    send: tuple[tuple[Count, Count, Count], ...] = ()


@message
class Want:
    """What a worker has of a version of the weights, and which of its chunks it wants.

    Attributes:
        version: The version; 0: none of which it knows. Of another one than its newest, the learner sends the newest.
        chunks: Number of its first chunks that have come.
        send: The first chunk to send, and the one behind the last, of each run that is missing.
    """

    version: Count = 0
    chunks: Count = 0
    send: tuple[tuple[Count, Count], ...] = ()


@message
class Parameter:
    """One tensor of a model in a version's bytes."""

    model: str
    name: str
    dtype: str
    shape: tuple[Count, ...]


@message
class VersionMeta:
    """The description of a version of the weights, besides its bytes.

    Attributes:
        version: Number of the version; see `versions`.
        parameters: The tensors in the bytes, in this order, each at a multiple of 16 bytes.
        flags: The `training` flags of the policy's modules; empty: workers keep their own.
    """

    version: Annotated[int, Field(ge=1, le=2**63 - 1)]
    parameters: tuple[Parameter, ...]
    flags: Flags = ()

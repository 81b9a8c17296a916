"""JetStream's error codes and headers, for both sides: the SDK and the operator.

The numbers are those of nats-server's `errors.json`. A refusal carries one as `err_code`.
"""

from enum import IntEnum

EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
"""Header of a publish: store only if the last message on this subject has this sequence; `0`: if it has none."""


class JetStreamCode(IntEnum):
    """The error codes that Rollfleet acts on.

    Example:
        >>> JetStreamCode(10059).name
        'STREAM_NOT_FOUND'
    """

    ACCOUNT_LIMIT = 10002  # the account's limits are used up
    NO_PEERS = 10005  # no server of the cluster has the memory
    NOT_AVAILABLE = 10008  # JetStream is temporarily unavailable: it starts, or elects a leader
    INSUFFICIENT_RESOURCES = 10023  # no server has the memory that the stream reserves
    MEMORY_EXCEEDED = 10028  # the server's memory for streams is used up
    NO_MESSAGE = 10037  # the stream has no such message
    STREAM_NOT_FOUND = 10059
    WRONG_LAST_SEQUENCE = 10071  # `EXPECTED_SEQUENCE` did not hold: another message came first
    STORE_FAILED = 10077  # the stream is full, in bytes or in messages


NO_CAPACITY = (
    JetStreamCode.ACCOUNT_LIMIT,
    JetStreamCode.NO_PEERS,
    JetStreamCode.INSUFFICIENT_RESOURCES,
    JetStreamCode.MEMORY_EXCEEDED,
)
"""The account, the server, or each server of a cluster, lacks memory."""

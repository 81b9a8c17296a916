"""JetStream's error codes and headers, for both sides: the SDK and the operator.

The numbers are those of nats-server's `errors.json`. A refusal carries one as `err_code`.
"""

from enum import IntEnum

EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
"""Header of a publish: store only if the last message on this subject has this sequence; `0`: if it has none."""


class JetStreamCode(IntEnum):
    """The error codes that Rollfleet acts on.

    Example:
        >>> 10059 in NOT_FOUND
        True
    """

    ACCOUNT_LIMIT = 10002  # the account's limits are used up
    NO_PEERS = 10005  # too few servers of the cluster have space for this many replicas
    NOT_AVAILABLE = 10008  # JetStream is temporarily unavailable: it starts, or elects a leader
    CONSUMER_NAME_IN_USE = 10013  # a consumer of this name has another configuration
    CONSUMER_NOT_FOUND = 10014
    INSUFFICIENT_RESOURCES = 10023  # no server has the memory or disk that the stream reserves
    MEMORY_EXCEEDED = 10028  # the server's memory for streams is used up
    NO_MESSAGE = 10037  # the stream has no such message
    STORAGE_EXCEEDED = 10047  # the server's disk for streams is used up
    STREAM_NOT_FOUND = 10059
    WRONG_LAST_SEQUENCE = 10071  # `EXPECTED_SEQUENCE` did not hold: another message came first
    REPLICAS_NOT_SUPPORTED = 10074  # more than one replica on a server without a cluster
    STORE_FAILED = 10077  # the stream is full (bytes, messages, messages per subject), or its disk is
    MULTIPLE_UNFILTERED = 10099  # the work queue has another consumer of all its subjects
    CONSUMER_NOT_UNIQUE = 10100  # another consumer of the work queue covers some of the same subjects
    CONSUMER_ACTIVE = 10105  # a consumer of this name exists and is active
    CONSUMER_EXISTS = 10148  # a consumer of this name exists


NOT_FOUND = (JetStreamCode.STREAM_NOT_FOUND, JetStreamCode.CONSUMER_NOT_FOUND)
"""The stream or consumer does not exist."""

NO_CAPACITY = (
    JetStreamCode.ACCOUNT_LIMIT,
    JetStreamCode.NO_PEERS,
    JetStreamCode.INSUFFICIENT_RESOURCES,
    JetStreamCode.MEMORY_EXCEEDED,
    JetStreamCode.STORAGE_EXCEEDED,
)
"""The account, the server, or each server of a cluster, lacks memory or disk."""

TOO_FEW_SERVERS = (JetStreamCode.NO_PEERS, JetStreamCode.REPLICAS_NOT_SUPPORTED)
"""The cluster is too small for the stream's replicas."""

CONSUMER_CONFLICT = (
    JetStreamCode.CONSUMER_NAME_IN_USE,
    JetStreamCode.MULTIPLE_UNFILTERED,
    JetStreamCode.CONSUMER_NOT_UNIQUE,
    JetStreamCode.CONSUMER_ACTIVE,
    JetStreamCode.CONSUMER_EXISTS,
)
"""Another consumer has this name, or the same workers."""

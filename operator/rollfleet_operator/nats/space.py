"""The space that NATS reserves for a job: little at first, and twice as much whenever half of it is in use.

NATS reserves all bytes that a stream may have, used or not. Most jobs use a small part of their bounds, which are
`delivery.maxBytes` and the installation's bytes of state. While a job lacks space, workers and learner wait.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from rollfleet_api.job import CollectorJob, Storage, WhenFull
from rollfleet_api.streams import Space

FIRST: Final = Space(batches=128 << 20, state=64 << 20)
"""The space of a new job."""

MOST_NAMED = 5
"""The most jobs in a text about the use of NATS."""

StreamInfo = Mapping[str, Any]
"""The reply to a request `STREAM.INFO`, or a part of one to `JSZ`: its `config` and `state`."""


def wanted_space(job: CollectorJob, batches: StreamInfo | None, state: StreamInfo | None, *, state_bytes: int) -> Space:
    """Return the space that a job's streams need now: never less than they have, within the job's bounds.

    Args:
        job: The job. With `whenFull: DropOldest` its batches have all of `maxBytes` at once: waiting for more space
            would cost batches.
        batches: The stream of its batches; None: it does not exist.
        state: The stream of its state; None: it does not exist.
        state_bytes: The most bytes of its state.
    """
    most, drops = job.spec.delivery.limit_bytes, job.spec.delivery.when_full is WhenFull.DROP_OLDEST
    return Space(
        batches=_wanted(batches, first=most if drops else FIRST.batches, most=most),
        state=_wanted(state, first=FIRST.state, most=state_bytes),
    )


def use_of(servers: bytes, storage: Storage) -> str:
    """Describe who has the space of a server.

    Args:
        servers: Its reply to a request `JSZ` with accounts, streams and their configuration.
        storage: The kind of storage.
    """
    data = json.loads(servers).get("data", {})
    kind = {Storage.FILE: "storage", Storage.MEMORY: "memory"}[storage]
    reserved = {account["name"]: _reserved(account, storage) for account in data.get("account_details", [])}
    largest = sorted(((size, name) for name, size in reserved.items() if size), reverse=True)
    jobs = [f"{name} {_mib(size)}" for size, name in largest[:MOST_NAMED]]
    if rest := largest[MOST_NAMED:]:
        jobs.append(f"{len(rest)} others {_mib(sum(size for size, _ in rest))}")
    most = data.get("config", {}).get(f"max_{kind}", 0)
    free = max(0, most - sum(reserved.values()))
    return f"{_mib(free)} of {_mib(most)} are free; jobs hold {', '.join(jobs) or 'nothing'}"


def _wanted(stream: StreamInfo | None, *, first: int, most: int) -> int:
    if stream is None:
        return min(first, most)
    held: int = stream["config"]["max_bytes"]
    used: int = stream["state"]["bytes"]
    return min(max(first, 2 * held if 2 * used >= held else held), most)


def _reserved(account: Mapping[str, Any], storage: Storage) -> int:
    streams = [stream["config"] for stream in account.get("stream_detail", [])]
    return sum(max(0, int(each["max_bytes"])) for each in streams if each["storage"] == storage.lower())


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"

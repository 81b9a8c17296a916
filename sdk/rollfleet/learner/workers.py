"""The workers of a learner: named, added, removed, called and waited for during a run."""

import re
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import wait
from typing import Any, Final, Literal

from rollfleet.arguments import plain, shown, whole_number
from rollfleet.errors import CallFailed, JobInvalid, MessageTooLarge, Timeout
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.gathering import Gatherer
from rollfleet.system.interrupts import interruptible
from rollfleet.transports.learner_side import Elastic, Transport
from rollfleet.wire.plain_values import from_json, to_json
from rollfleet_api.job import MAX_WORKERS
from rollfleet_api.messages import MAX_CALL_BYTES, Call
from rollfleet_api.versions import count_of

_LOOK_S: Final = 0.005


class Membership:
    """The workers of a transport, by their indices."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self) -> tuple[int, ...]:
        """Return the workers whose batches come to this rank, in the order of their fragments."""
        rank = self._transport.rank
        return tuple(sorted(worker for worker in self._transport.members() if rank.has(worker)))

    def these(self, worker_ids: int | Collection[int] | None) -> tuple[int, ...] | None:
        """Return the workers that a user named; None: all.

        Raises:
            JobInvalid: The worker is unknown.
        """
        if worker_ids is None:
            return None
        given = plain(worker_ids)
        several = isinstance(given, Iterable) and not isinstance(given, str)
        try:
            once = dict.fromkeys(whole_number(each, "worker_ids") for each in (given if several else (given,)))
        except TypeError:  # a tensor without dimensions is an iterable that cannot be iterated
            raise JobInvalid(f"worker_ids: expected an int or a list of them, got {shown(given)}") from None
        these, members = tuple(once), self._transport.members()
        for worker in these:
            if worker not in members:
                raise JobInvalid(f"there is no worker {worker}; the workers are {sorted(members)}")
        return these

    def add(self, count: int) -> list[int]:
        """Start more workers. Returns their indices.

        Raises:
            JobInvalid: The workers are not the learner's own.
        """
        count = whole_number(count, "count", most=MAX_WORKERS)
        return self._elastic().add_workers(count)

    def remove(self, worker_ids: int | Collection[int]) -> None:
        """Remove these workers.

        Raises:
            JobInvalid: The worker is unknown, none would remain, or the workers are not the learner's own.
        """
        these = self.these(worker_ids)
        if these is None:
            raise JobInvalid("worker_ids: expected an int or a list of them, got None")
        if set(these) >= self._transport.members():
            raise JobInvalid("no worker would remain: shut the collector down instead")
        self._elastic().remove_workers(these)

    def _elastic(self) -> Elastic:
        if self._transport.elastic is None:
            raise JobInvalid(
                "only worker processes and pods of this collector can be added or removed: make it with `workers=1` or "
                "more, or change `workers` of the job that it connected to"
            )
        return self._transport.elastic


def call_workers(
    gatherer: Gatherer,
    transport: Transport,
    workers: tuple[int, ...] | None,
    method: str,
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    *,
    timeout_s: float,
) -> dict[int, Any]:
    """Call `method` on these workers, None: on all, and return the results by worker. See `Collector.call`."""
    if not isinstance(method, str) or not re.fullmatch(r"(env|policy)\.[A-Za-z_]\w*", method):
        raise JobInvalid(f"method: expected 'env.<name>' or 'policy.<name>', got {shown(method)}")
    try:
        text = to_json(arguments, max_bytes=MAX_CALL_BYTES)
    except (TypeError, ValueError, MessageTooLarge) as error:
        raise JobInvalid(f"the arguments of {method!r} cannot be sent: {error}") from None
    asked = sorted(transport.members()) if workers is None else workers
    calls = {
        worker: transport.call(worker, Call(number=secrets.randbits(62), method=method, arguments=text))
        for worker in asked
    }
    until = time.monotonic() + timeout_s
    try:
        while missing := [worker for worker, answered in calls.items() if not answered.done()]:
            if time.monotonic() >= until:
                raise Timeout(f"workers {missing} have not answered {method!r} within {timeout_s:g} s")
            gatherer.check_workers()
            with interruptible():
                wait(calls.values(), _LOOK_S)
    finally:
        for answered in calls.values():
            answered.cancel()
    gatherer.note_call(method)
    answers = {worker: answered.result() for worker, answered in calls.items()}
    for worker, answer in answers.items():
        if answer.error is not None:
            raise CallFailed(worker, method, answer.error)
    return {worker: from_json(answer.result) for worker, answer in answers.items()}


def wait_until_applied(
    gatherer: Gatherer,
    transport: Transport,
    weights: Broadcaster,
    what: Literal["version", "env_version"],
    version: int,
    *,
    timeout_s: float,
) -> None:
    """Wait until every member that a version was sent to has applied it, or a newer one, as its heartbeat says.

    Args:
        gatherer: Checks the workers meanwhile.
        transport: The learner's side of a transport.
        weights: The versions of the weights.
        what: "version": of the weights. "env_version": of the settings of environments.
        version: The version.
        timeout_s: How long to wait.

    Raises:
        Timeout: Workers are still behind, and the message names them; or this version was not sent.
    """

    def newest() -> int:
        return weights.version if what == "version" else gatherer.director.run_state.env_version

    def behind() -> frozenset[int]:
        members = transport.members()
        if what == "version":  # some versions are for some workers
            members = frozenset(worker for worker in members if count_of(weights.target(worker)) >= version)
        return members - {worker for worker, status in transport.workers().items() if getattr(status, what) >= version}

    until = time.monotonic() + timeout_s
    while version > newest() or behind():
        if time.monotonic() >= until:
            raise Timeout(
                f"workers {sorted(behind())} have not applied {what} {version} within {timeout_s:g} s"
                if version <= newest()
                else f"{what} {version} was not sent within {timeout_s:g} s; the newest is {newest()}"
            )
        gatherer.check_workers()
        with interruptible():
            time.sleep(0.01)

"""Calls methods on workers: the call goes out with control, and the answers come with the workers' heartbeats."""

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollfleet.arguments import shown
from rollfleet.errors import CallFailed, JobInvalid, MessageTooLarge, Timeout
from rollfleet.learner.gathering import Gatherer
from rollfleet.system.interrupts import interruptible
from rollfleet.transports.learner_side import Transport
from rollfleet.wire.plain_values import from_json, to_json
from rollfleet_api.messages import Answer, Call

MAX_ARGUMENT_BYTES: Final = 1 << 14  # control is small
_LOOK_S: Final = 0.005


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
        text = to_json(arguments, max_bytes=MAX_ARGUMENT_BYTES)
    except (TypeError, ValueError, MessageTooLarge) as error:
        raise JobInvalid(f"the arguments of {method!r} cannot be sent: {error}") from None
    asked = tuple(sorted(transport.members())) if workers is None else workers
    call = Call(number=secrets.randbits(62), workers=asked, method=method, arguments=text)
    try:
        gatherer.director.call(call)
        answers = _answers(gatherer, transport, call, timeout_s)
    finally:
        gatherer.director.call(None)
    for worker, answer in answers.items():
        if answer.error is not None:
            raise CallFailed(worker, method, answer.error)
    return {worker: from_json(answer.result) for worker, answer in answers.items()}


def _answers(gatherer: Gatherer, transport: Transport, call: Call, timeout_s: float) -> dict[int, Answer]:
    until = time.monotonic() + timeout_s
    while True:
        found = {worker: status.answer for worker, status in transport.workers().items()}
        answers = {worker: answer for worker, answer in found.items() if answer and answer.number == call.number}
        if not (missing := sorted({*call.workers} - answers.keys())):
            return {worker: answers[worker] for worker in call.workers}
        if time.monotonic() >= until:
            raise Timeout(f"workers {missing} have not answered {call.method!r} within {timeout_s:g} s")
        gatherer.check_workers()
        with interruptible():
            time.sleep(_LOOK_S)

"""Waits until the workers have applied what the learner sent: weights, or settings of environments."""

import time

from rollfleet.errors import Timeout
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.gathering import Gatherer
from rollfleet.system.interrupts import interruptible
from rollfleet.transports.learner_side import Transport
from rollfleet_api.versions import count_of


class Applied:
    """The versions that workers have applied, as their heartbeats say.

    Args:
        transport: The learner's side of a transport.
        weights: The versions of the weights.
        gatherer: Checks the workers meanwhile.
    """

    def __init__(self, transport: Transport, weights: Broadcaster, gatherer: Gatherer) -> None:
        self._transport, self._weights, self._gatherer = transport, weights, gatherer

    def wait_for_weights(self, version: int, timeout_s: float) -> None:
        """Wait until every member that this version was sent to has applied it, or a newer one.

        Raises:
            Timeout: Workers are still behind, and the message names them; or this version was not sent.
        """
        self._wait("version", version, timeout_s)

    def wait_for_settings(self, version: int, timeout_s: float) -> None:
        """Wait until every member has this version of the environments' settings, or a newer one. See above."""
        self._wait("env_version", version, timeout_s)

    def _wait(self, what: str, version: int, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while version > self._sent(what) or self._behind(what, version):
            if time.monotonic() >= until:
                raise Timeout(
                    f"workers {sorted(self._behind(what, version))} have not applied {what} {version} within "
                    f"{timeout_s:g} s"
                    if version <= self._sent(what)
                    else f"{what} {version} was not sent within {timeout_s:g} s; the newest is {self._sent(what)}"
                )
            self._gatherer.check_workers()
            with interruptible():
                time.sleep(0.01)

    def _sent(self, what: str) -> int:
        return self._weights.version if what == "version" else self._gatherer.director.run_state.env_version

    def _behind(self, what: str, version: int) -> set[int]:
        """Return the members that this version was sent to, and that have an older one."""
        sent_to = {
            worker
            for worker in self._transport.members()
            if what != "version" or count_of(self._weights.target(worker)) >= version
        }
        return sent_to - {
            worker for worker, status in self._transport.workers().items() if getattr(status, what) >= version
        }

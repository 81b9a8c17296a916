"""Collectors on each transport, made from the same keywords, which work alike on all of them."""

from contextlib import ExitStack
from typing import Any, ClassVar

from tests.sdk.given_keywords import grouped

from rollfleet import Collector


class Collect:
    """Makes collectors; called as `rollfleet.Collector` is. They are shut down after the test.

    Attributes:
        workers: The number of workers, unless the keyword `workers` is given.
        alone: The keywords for a single worker: several threads share torch's generators, and processes do not.
        spawned: The keywords for workers that are no forks of this process.
    """

    workers = 1
    alone: ClassVar[dict[str, Any]] = {}
    spawned: ClassVar[dict[str, Any]] = {}

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, env: Any, policy: Any = None, **keywords: Any) -> Collector:
        return self._kept(Collector(env, policy, **grouped(keywords)))

    def _kept(self, collector: Collector) -> Collector:
        self._stack.callback(collector.shutdown)
        return collector


class CollectInProcesses(Collect):
    """Two worker processes, forks of this one: no object of a test needs pickling."""

    workers = 2
    spawned: ClassVar[dict[str, Any]] = {"start_method": "spawn"}

    def __call__(self, env: Any, policy: Any = None, **keywords: Any) -> Collector:
        mine: dict[str, Any] = {"workers": self.workers, "start_method": "fork"}
        return self._kept(Collector(env, policy, **grouped(mine | keywords)))

"""Collectors wherever batches can come from, made from the same arguments: what a keyword does, it does everywhere."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from rollfleet import Collector

if TYPE_CHECKING:
    pass


class Collect:
    """Makes collectors; called as `rollfleet.Collector` is. They are shut down after the test.

    Attributes:
        workers: How many collect, unless the keyword `workers` says so.
        alone: The keywords by which one worker collects: several threads share torch's generators, which processes
            do not.
    """

    workers = 1
    alone: ClassVar[dict[str, Any]] = {}

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, env: Any, policy: Any = None, **keywords: Any) -> Collector:
        """A collector whose workers are in this process."""
        return self._kept(Collector(env, policy, **keywords))

    def _kept(self, collector: Collector) -> Collector:
        self._stack.callback(collector.shutdown)
        return collector


class CollectInProcesses(Collect):
    """Two worker processes, forks of this one: nothing that a test defines need be pickled."""

    workers = 2

    def __call__(self, env: Any, policy: Any = None, **keywords: Any) -> Collector:
        """A collector with workers of its own."""
        mine: dict[str, Any] = {"workers": self.workers, "start_method": "fork"}
        return self._kept(Collector(env, policy, **mine | keywords))


# From 3.12 on Python warns of forks of processes with threads, such as torch's. The workers here are done before
# anything could come of it.
FORKED = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

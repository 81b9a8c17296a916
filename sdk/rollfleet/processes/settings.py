"""`rollfleet.Processes`: how the worker processes of a collector run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollfleet.arguments import seconds, shown, true_or_false, whole_number
from rollfleet.errors import JobInvalid
from rollfleet.processes.launch import START_METHODS, StartMethod
from rollfleet.transports.hooks import HOOKS, check_hook

if TYPE_CHECKING:
    from tensordict import TensorDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Settings of worker processes: `rollfleet.Collector(..., workers=4, processes=Processes(start_method="fork"))`.

    Example:
        >>> import rollfleet
        >>> rollfleet.Processes(max_restarts_per_worker=3).start_method
        'spawn'
        >>> rollfleet.Processes(start_method="thread")
        Traceback (most recent call last):
        rollfleet.errors.JobInvalid: start_method is one of 'spawn', 'fork', not 'thread'

    Attributes:
        start_method: "spawn": a new interpreter, which first runs a script's top level if the collector stands below
            `if __name__ == "__main__":`. "fork": a copy of this process.
        quiet: Hide the workers' Python warnings.
        max_restarts_per_worker: Restarts of one worker before the collector raises its error. None: 0, in pods 10.
        close_timeout_s: Seconds that workers have at the end to close their environments, before they are killed.
        suspect_after_s: Seconds in one environment step after which a worker is reported as stuck.

        stragglers_threshold: The fraction of workers that closes a round of mode sync; the others stop at their next
            step, and padding fills their rows.
        max_batches_ahead: Batches that a worker of mode async may collect before the learner takes the first.
        max_lag: Versions that a batch of mode async may be behind the newest; the iterator drops older ones. None:
            `2 * workers + 2`.

        env_processes: Processes of `vectorization="async"` in each worker; 0: one for each environment.
        init_fn: A function that each worker calls before it makes its environments, or its `module:callable`.
        pre_collect_hook: A function that each worker calls before each batch, or its `module:callable`.
        post_collect_hook: A function that each worker calls with each batch `[num_envs, T]` that it has collected, or
            its `module:callable`.

    The last four also apply to a collector without worker processes.

    Raises:
        JobInvalid: A value cannot be used. The message names it.
    """

    start_method: StartMethod = "spawn"
    quiet: bool = True
    max_restarts_per_worker: int | None = None
    close_timeout_s: float = 3.0
    suspect_after_s: int = 10
    stragglers_threshold: float = 1.0
    max_batches_ahead: int = 1
    max_lag: int | None = None
    env_processes: int = 0
    init_fn: Callable[[], object] | str | None = None
    pre_collect_hook: Callable[[], object] | str | None = None
    post_collect_hook: "Callable[[TensorDict], object] | str | None" = None

    def __post_init__(self) -> None:
        if not isinstance(self.start_method, str) or self.start_method not in START_METHODS:
            raise JobInvalid(
                f"start_method is one of {', '.join(map(repr, START_METHODS))}, not {shown(self.start_method)}"
            )
        true_or_false(self.quiet, "quiet")
        seconds(self.close_timeout_s, "close_timeout_s")
        if self.max_restarts_per_worker is not None:
            whole_number(self.max_restarts_per_worker, "max_restarts_per_worker")
        for name in HOOKS:
            check_hook(name, getattr(self, name))

"""The evaluation workers of a learner: processes of their own, whose faults never reach its loop."""

import logging
from collections.abc import Mapping

from rollfleet.processes.launch import StartMethod
from rollfleet.processes.supervisor import Supervisor
from rollfleet.schemes import Layout
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import State
from rollfleet_api.job import EvaluationSpec
from rollfleet_api.messages import Control, Evaluation

log = logging.getLogger(__name__)

MAX_RESTARTS = 10


class EvaluationProcesses:
    """Starts a job's evaluation workers, sends each its versions, and gathers their results.

    A worker that dies is started again, with its version. After 10 restarts, or an error that a restart would repeat,
    the fault is logged, and that worker evaluates no more.
    """

    def __init__(self, workload: Workload, spec: EvaluationSpec, method: StartMethod, *, quiet: bool) -> None:
        self._spec = spec
        self.supervisor = Supervisor(workload, method, max_restarts=MAX_RESTARTS, quiet=quiet, evaluation=True)
        self.supervisor.add(spec.workers)

    def control(self, control: Control) -> None:
        """Send control to the evaluation workers."""
        self.supervisor.control(control)

    def send_weights(self, version: int, layout: Layout, models: Mapping[str, State]) -> None:
        """Send a version if it is due."""
        if (index := self._spec.worker_of(version)) is not None:
            self.supervisor.send_weights(version, layout, models, frozenset([index]))

    def all(self) -> tuple[Evaluation, ...]:
        """Return the results so far, by version."""
        self.listen()
        return self.supervisor.evaluations.all()

    def listen(self) -> None:
        """Read results, and start workers again that have died."""
        supervisor = self.supervisor
        supervisor.listen(0)
        if supervisor.fault is not None:
            log.warning("an evaluation worker gave up: %s", supervisor.fault)
            supervisor.fault = None

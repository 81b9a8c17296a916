"""A worker in the learner's own process and thread: it collects inside `receive`."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace

import torch

from rollfleet.data.batch import Fragment, to_batch
from rollfleet.errors import NoWeights
from rollfleet.schemes import Layout
from rollfleet.transports.evaluation_log import EvaluationLog
from rollfleet.transports.learner_side import Arrival, Transport
from rollfleet.transports.worker_side import PendingBatch, Weights
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import Snapshot, State
from rollfleet.worker.evaluation import PolicyEvaluation
from rollfleet.worker.worker import Worker
from rollfleet_api.job import Mode
from rollfleet_api.messages import Answer, Call, Control, Evaluation, LearnerPhase, WorkerStatus
from rollfleet_api.transfers import BatchMeta


class InlineTransport(Transport):
    """See `Transport`. `receive` raises errors of environments and policies unchanged.

    Args:
        workload: The work of the one worker.
        device: Device of the batches; None: the CPU.
        no_cuda_sync: Do not wait until batches are on the device.
        acts_with_the_learners_policy: Whether the worker's policy is the object that the learner trains. It then needs
            no weights.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        device: torch.device | None = None,
        no_cuda_sync: bool = False,
        acts_with_the_learners_policy: bool = False,
    ) -> None:
        self._device, self._no_cuda_sync = device, no_cuda_sync
        self._sync = workload.job.spec.mode is Mode.SYNC
        self._worker_transport = _InlineWorkerTransport(shared=acts_with_the_learners_policy)
        self._worker = Worker(self._worker_transport, workload, 0, in_learner=True)
        self._spec = workload.job.spec.evaluation
        try:
            self._evaluation = PolicyEvaluation(workload, 0) if self._spec else None
        except BaseException:
            self._worker.close()
            raise
        self._evaluations = EvaluationLog()
        self._evaluated = 0
        self._sequence = -1
        self._collecting = threading.Lock()  # a background fill collects on its own thread
        self._done_round = -1
        self._open = True

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations by version: each ran inside `receive`."""
        return self._evaluations.all()

    def control(self, control: Control) -> None:
        """See `Transport`."""
        self._worker_transport.control = control

    def send_weights(
        self, version: int, layout: Layout, models: Mapping[str, State], *, workers: frozenset[int] | None = None
    ) -> None:
        """See `Transport`."""
        if workers is None or 0 in workers:
            self._worker_transport.put(version, layout.snapshot(models))  # another thread may load the last one

    def receive(self, *, timeout_s: float) -> Arrival | None:
        """See `Transport`. Collects a batch; None: control asks for none.

        After an exception, new episodes begin. The number of the batch under way is left out: it counts as missed.
        """
        control = self._worker_transport.control
        if control is None or control.phase is not LearnerPhase.RUN:
            return None
        if self._sync and control.round <= self._done_round:
            return None
        with self._collecting:
            self._worker.apply_weights(control)
            self._evaluate(control.version_for(0))
            self._sequence += 1
            try:
                fragment, meta = self._worker.collect(control)
            except BaseException:
                self._worker.start_over()  # a hook may have raised: no learner gets the frames that were collected
                raise
            self._worker.report_waiting()
            self._done_round = control.round
            return self._arrival(fragment, meta)

    def take(self, arrival: Arrival) -> None:
        """See `Transport`. The batch is the learner's from the start."""

    def members(self) -> frozenset[int]:
        """See `Transport`."""
        return frozenset([0])

    def workers(self) -> Mapping[int, WorkerStatus]:
        """See `Transport`. Unless it collects, the worker applies weights, as any that waits."""
        control = self._worker_transport.control
        if control and control.phase is not LearnerPhase.COMPLETE and self._collecting.acquire(blocking=False):
            try:
                self._worker.apply_waiting()
            finally:
                self._collecting.release()
        return {0: self._worker_transport.status}

    def call(self, worker: int, call: Call) -> "Future[Answer]":
        """See `Transport`. The worker answers at once."""
        answered = Future[Answer]()
        with self._collecting:
            answered.set_result(self._worker.answer(call))
        return answered

    def close(self, *, timeout_s: float | None = None) -> None:
        """See `Transport`."""
        if self._open:
            self._open = False
            try:
                self._worker.close()
            finally:
                if self._evaluation is not None:
                    self._evaluation.close()

    def _evaluate(self, version: int) -> None:
        """Evaluate the version that the next batch acts on, if it is due. An interrupted evaluation is repeated."""
        if self._spec is None or self._evaluation is None or version == self._evaluated:
            return
        if self._spec.worker_of(version) is not None:
            self._evaluation.copy_weights(self._worker.policy)
            if evaluation := self._evaluation.evaluate(version):
                self._evaluations.add(evaluation)
        self._evaluated = version

    def _arrival(self, fragment: Fragment, meta: BatchMeta) -> Arrival:
        device = self._device
        if fragment.structure is None and (device is None or device.type == "cpu"):
            # The rollout writes into the same memory again: the learner gets a copy.
            fragment = replace(fragment, steps={key: value.clone() for key, value in fragment.steps.items()})
        batch = to_batch(fragment)
        if device is not None:
            batch = batch.to(device, non_blocking=self._no_cuda_sync)
        return Arrival(
            worker=0,
            incarnation=0,
            sequence=self._sequence,
            meta=meta,
            episodes=fragment.episodes,
            batch=batch,
            nbytes=sum(tensor.nbytes for tensor in fragment.steps.values()),
        )


class _InlineWorkerTransport:
    """See `WorkerTransport`. It never waits: in its thread nothing else makes the condition true."""

    call: Call | None = None  # the learner's side calls the worker itself

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._newest: Weights | None = None
        self._layout: Layout | None = None
        self.incarnation = 0
        self.control: Control | None = None
        self.status = WorkerStatus(worker=0, incarnation=0)

    def follow_weights(self, layout: Layout) -> "_InlineWorkerTransport | None":
        self._layout = layout
        return None if self._shared else self

    def put(self, version: int, snapshot: Snapshot) -> None:
        if self._layout is not None:
            self._layout.check(snapshot.parameters)
        self._newest = Weights(version=version, data=snapshot.data.numpy(), flags=snapshot.flags)

    def newest(self) -> Weights | None:
        return self._newest

    def wait_until(self, condition: Callable[[], bool]) -> None:
        if not condition():
            raise NoWeights(
                "the policy waits for weights and none were sent: call update_policy_weights_() before iterating"
            )

    def send(self, fragment: Fragment, meta: BatchMeta) -> PendingBatch:
        done: Future[None] = Future()
        done.set_result(None)
        return PendingBatch(admitted=done, delivered=done)

    def answer(self, answer: Answer) -> None:
        pass

    def report(self, status: WorkerStatus) -> None:
        self.status = status

    def close(self) -> None:
        pass

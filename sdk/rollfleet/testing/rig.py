"""A transport under test: how to make one, and how a check plays the learner's part."""

import time
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rollfleet.envs.factory import make_env
from rollfleet.errors import RollfleetError
from rollfleet.schemes import Whole
from rollfleet.transports.learner_side import Arrival, Transport
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import POLICY, WeightLayout, state_of
from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, WorkerState
from rollfleet_api.validation import parse_job

ENVS, STEPS = 2, 4
TIMEOUT_S = 60.0


class Marked(nn.Module):
    """A policy that writes its one weight into each frame, under `mark`: a batch shows the weights that it ran on."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = nn.Parameter(torch.zeros(1))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Return action 0 and the mark, for each environment."""
        envs = observation.shape[0]
        return {"action": torch.zeros(envs, dtype=torch.int64), "mark": self.mark.expand(envs, 1).clone()}


class Rig(Protocol):
    """A transport under test, with workers that run `marked_workload`.

    Attributes:
        in_background: Whether workers collect while the learner is outside `receive`.
        joins_as_member: Whether a worker that may join is a member before it has.
    """

    in_background: bool
    joins_as_member: bool

    @property
    def transport(self) -> Transport:
        """The learner's side."""

    def join(self) -> int:
        """Start one more worker. Returns its index. Only called if `in_background`."""

    def break_down(self) -> type[RollfleetError]:
        """Break the transport in the background. Returns the expected error. Only called if `in_background`."""

    def close(self) -> None:
        """Release everything."""


class MakeRig(Protocol):
    """Makes a rig."""

    def __call__(self, workers: int = 2, **spec: Any) -> Rig:
        """Make a rig with this many workers, in which one more may join. Rigs without background workers have one.

        Args:
            workers: Number of workers that run.
            spec: Fields of the job's spec, for `small_job`. The job's `workers` counts the one that may join.
        """


def small_job(**spec: Any) -> CollectorJob:
    """Return a small valid job: 2 environments of CartPole, 4 steps per batch and worker, mode Async, lag 0.

    Args:
        spec: Fields of the spec, in camelCase, that replace these.
    """
    return parse_job(
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "test"}, "spec": small_spec(**spec)}
    )


def small_spec(**spec: Any) -> dict[str, Any]:
    """Return the spec of `small_job`."""
    return {
        "mode": "Async",
        "workers": 1,
        "env": {"id": "CartPole-v1", "numEnvs": ENVS},
        "policy": {"mlp": {}},
        "collect": {"framesPerBatch": ENVS * STEPS},
        "weights": {"maxLag": 0},
    } | spec


def marked_workload(job: CollectorJob) -> Workload:
    """Return a job's workload with `Marked` as its policy."""
    return Workload(job=job, make_env=lambda _: make_env(job.spec.env), make_policy=lambda *_: Marked(), scheme=Whole())


def run(transport: Transport, version: int = 1, **more: Any) -> None:
    """Send control: collect on this version. `more` sets other fields of `Control`."""
    fields: dict[str, Any] = {"phase": LearnerPhase.RUN, "round": 0, "version": version} | more
    transport.control(Control(session=transport.resumed.session, **fields))


def send(transport: Transport, version: int, mark: float | None = None) -> None:
    """Send a version whose mark is its number, or `mark`."""
    policy = Marked()
    nn.init.constant_(policy.mark, version if mark is None else mark)
    models = {POLICY: state_of(policy)}
    transport.send_weights(version, WeightLayout(models), models)


def receive(transport: Transport, count: int = 1, *, take: bool = True) -> list[Arrival]:
    """Receive this many batches, and take them."""
    arrivals: list[Arrival] = []
    until = time.monotonic() + TIMEOUT_S
    while len(arrivals) < count:
        assert time.monotonic() < until, f"{len(arrivals)} batches came; workers: {dict(transport.workers())}"
        arrival = transport.receive(timeout_s=0.2)
        if arrival:
            arrivals.append(arrival)
            if take:
                transport.take(arrival)
    return arrivals


def wait_for(
    transport: Transport, worker: int, state: WorkerState, *, batches: int | None = None, drain: bool = False
) -> None:
    """Wait until a worker reports this state, and this number of batches. `drain`: take batches meanwhile."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        status = transport.workers().get(worker)
        if status and status.state is state and batches in (None, status.batches):
            return
        assert time.monotonic() < until, f"worker {worker} is not {state}: {status}"
        if drain and (arrival := transport.receive(timeout_s=0)):
            transport.take(arrival)
        time.sleep(0.01)

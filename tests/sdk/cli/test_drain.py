"""A worker that gets SIGTERM, as before the drain of a node, loses no collected frames."""

import signal

import pytest
from tests.job_server import Connect, Server
from tests.sdk.cli.program import Program, Workplace
from tests.sdk.concurrent_calls import begin

from rollfleet.nats.transport import NatsTransport
from rollfleet.testing.rig import run
from rollfleet_api.permissions import Role

ENVIRONMENT = """
import time
import gymnasium
import numpy as np

class Slow(gymnasium.Env):
    # Each observation holds its episode and step; episodes have 7 steps.
    observation_space = gymnasium.spaces.Box(-1.0, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    episode, steps, t = -1, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, self.t], np.float32), {}

    def step(self, action):
        time.sleep(0.01)
        self.t, self.steps = self.t + 1, self.steps + 1
        if self.steps == 25:
            print("25 steps", flush=True)
        return np.array([self.episode, self.t], np.float32), 1.0, self.t == 7, False, {}
"""


def start(workplace: Workplace, server: Server) -> Program:
    """Start a worker, and wait until it is in the middle of a batch of 100 s, longer than tests wait."""
    workplace.write("slow.py", ENVIRONMENT)
    job = server.own(
        env={"entrypoint": "slow:Slow", "numEnvs": 2},
        policy={"random": {}},
        collect={"framesPerBatch": 20_000},
        mode="Async",
        workers=1,
    )
    learner = NatsTransport(server.link(Role.LEARNER), job)
    run(learner, version=0)
    program = workplace.start_worker(server, "--index", "0")
    program.wait_for("25 steps")
    learner.close()
    return program


def test_a_worker_that_leaves_sends_its_frames_to_the_learner(
    workplace: Workplace, server: Server, connect: Connect
) -> None:
    program = start(workplace, server)
    with connect() as collector:
        waiting = begin(next, collector)
        assert program.stop_by(signal.SIGTERM) == 143
        batch = waiting.result(20)
        assert 12 <= batch.shape[1] < 9_000
        seen, then = batch["observation"], batch["next", "observation"]
        assert (then[..., 1] == seen[..., 1] + 1).all()  # no transition goes from one episode to the next
        assert (then[..., 0] == seen[..., 0]).all()
        assert ((then[..., 1] == 7) == batch["next", "terminated"][..., 0]).all()
        assert collector.workers == ()  # it has left: no round waits for it


@pytest.mark.slow  # it takes 10 s: after them, a worker whose last batch no learner takes is ended
def test_at_sigterm_a_worker_leaves_without_a_learner(workplace: Workplace, server: Server) -> None:
    assert start(workplace, server).stop_by(signal.SIGTERM) == 143

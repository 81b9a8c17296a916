"""Evaluation: whole episodes on some versions of the weights. Their result is a small message, and never a batch."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import nn

from rollfleet.envs.factory import give
from rollfleet.envs.settings import Settings
from rollfleet.envs.torchrl_env import TorchRLEnv
from rollfleet.exploration import Exploration
from rollfleet.policies.actor import Actor, Policy
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.whole_episodes import WholeEpisodes
from rollfleet.schemes import Layout
from rollfleet.system.generators import generators_seeded
from rollfleet.transports.worker_side import Weights, WorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import WeightLayout
from rollfleet.weights.modules import POLICY, complete, copy_of, flags_of, sources_of
from rollfleet.worker.worker import failure
from rollfleet_api.job import EvaluationSpec
from rollfleet_api.messages import Evaluation, LearnerPhase, WorkerState, WorkerStatus
from rollfleet_api.versions import count_of

log = logging.getLogger(__name__)


class PolicyEvaluation:
    """Evaluates a policy of its own, in `eval()` mode, in environments of its own.

    Args:
        workload: The job, its environments and its policy.
        index: The index of the evaluation worker.

    Raises:
        JobInvalid: The environment or the policy cannot be made.
    """

    def __init__(self, workload: Workload, index: int) -> None:
        spec = workload.job.spec
        assert spec.evaluation is not None, "a job without evaluation has no evaluation workers"
        self._spec: EvaluationSpec = spec.evaluation
        self._seed = Seeds.of_evaluation(spec.collect.seed, 0, 1).envs[0]
        with generators_seeded(self._seed):
            env = workload.make_env(index)
            try:
                made = workload.make_policy(index, env.single_observation_space, env.single_action_space)
                self._policy: Policy = copy_of(made) if isinstance(made, nn.Module) else made  # it may be shared
                own = {POLICY, *sources_of(made)} if isinstance(made, nn.Module) else ()
                self._flags = tuple((name, False) for name in own)  # as `eval()` does
                complete(self._policy, {}, self._flags)
                self._select = workload.scheme.select
                self.layout: Layout = workload.scheme.layout(self._select(self._policy))
                self._warn_of_noise(env)
                if self._spec.settings:
                    settings = (self._spec.settings,) * env.num_envs
                    give(env, Settings(settings, spec.env.settings_method))
                self._episodes = WholeEpisodes(env, self._policy, spec.collect, self._spec.exploration)
            except BaseException:
                env.close()
                raise

    def _warn_of_noise(self, env: Any) -> None:
        """Warn of a policy that explores although it should not: the same observation twice gives two actions."""
        how = self._spec.exploration
        if how is Exploration.RANDOM or not isinstance(self._policy, nn.Module) or isinstance(env, TorchRLEnv):
            return
        spaces, count = (env.single_observation_space, env.single_action_space), env.num_envs
        try:
            actor = Actor(copy_of(self._policy), spaces, count, lambda: np.zeros(count, np.int64), exploration=how)
            seen = batch_space(spaces[0], count)
            seen.seed(0)
            actor.advance(seen.sample())
            one, two = ([each.copy() for each in actor.first()[: len(actor.actions.leaves)]] for _ in range(2))
        except Exception:  # a sampled observation may be none that the policy knows; its episodes raise other errors
            return
        if not all(map(np.array_equal, one, two)):
            log.warning(
                "evaluation: the policy took two actions for the same observation, so evaluations have its noise; take "
                "the mean or the mode if `rollfleet.exploration.exploration()` is not Exploration.RANDOM"
            )

    def load(self, version: Weights) -> None:
        """Load a version."""
        with torch.inference_mode():  # an earlier call may have left tensors of this mode
            self.layout.load(torch.from_numpy(version.data), loaded := self._select(self._policy))
            complete(self._policy, loaded, self._flags or version.flags)

    def copy_weights(self, policy: Any) -> None:
        """Load the present weights of another policy of the same kind, exactly."""
        exact = WeightLayout(weights := self._select(policy))
        with torch.inference_mode():
            exact.load(exact.snapshot(weights).data, loaded := self._select(self._policy))
            complete(self._policy, loaded, self._flags or flags_of(policy))

    def evaluate(self, version: int, stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Run the episodes on the loaded weights. Returns None if `stop` was true before their end."""
        with generators_seeded(self._seed):
            found = self._episodes.run(self._spec.episodes, stop)
        if found is None:
            return None
        returns, lengths = found
        return Evaluation(
            version=count_of(version),
            episodes=len(returns),
            mean_return=float(returns.mean()),
            min_return=float(returns.min()),
            max_return=float(returns.max()),
            std_return=float(returns.std()),
            mean_length=float(lengths.mean()),
            time_s=time.time(),
        )

    def close(self) -> None:
        """Close the environments."""
        self._episodes.close()


class EvaluationTransport(WorkerTransport, Protocol):
    """The connection of an evaluation worker to its learner."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """Send a result."""


class EvaluationWorker:
    """Evaluates its newest version, until the job is complete.

    Args:
        transport: The connection to the learner.
        workload: The job, its environments and its policy.
        index: The index of the evaluation worker, from 0.

    Attributes:
        status: The last status.

    Raises:
        JobInvalid: The environment or the policy cannot be made.
    """

    def __init__(self, transport: EvaluationTransport, workload: Workload, index: int) -> None:
        self._transport = transport
        self.status = WorkerStatus(worker=index, incarnation=0)
        self._leaving = threading.Event()
        transport.report(self.status)
        hooks = workload.make_hooks()
        if hooks.init_fn is not None:
            hooks.init_fn()
        self._evaluation = PolicyEvaluation(workload, index)

    def run(self) -> None:
        """Evaluate until the job is complete, or until `leave`.

        Raises:
            JobEnded: It ended otherwise: its learner is gone for good.
            WeightMismatch: The learner's weights do not fit the policy.
        """
        layout, evaluated = self._evaluation.layout, 0
        inbox = self._transport.follow_weights(layout) if layout.parameters else None

        def ready() -> bool:
            newest = inbox.newest() if inbox else None
            return self._is_over() or (newest is not None and newest.version != evaluated)

        while True:
            self._transport.wait_until(ready)
            newest = inbox.newest() if inbox else None
            if newest is None or self._is_over():
                break
            evaluated = newest.version
            self._evaluation.load(newest)
            if (evaluation := self._evaluation.evaluate(newest.version, self._is_over)) is not None:
                self._transport.evaluated(evaluation)
        self._transport.report(replace(self.status, state=WorkerState.COMPLETE))

    def leave(self) -> None:
        """Stop at the next step, and end. Safe in any thread and in a signal handler."""
        self._leaving.set()

    def failed(self, error: BaseException) -> WorkerStatus:
        """Return the status that reports an error of `run`."""
        return failure(self.status, error)

    def close(self) -> None:
        """Close the environments."""
        self._evaluation.close()

    def _is_over(self) -> bool:
        control = self._transport.control
        return self._leaving.is_set() or (control is not None and control.phase is LearnerPhase.COMPLETE)

"""The evaluation of a policy by itself, without a collector."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from rollfleet.arguments import whole_number
from rollfleet.collector import Collector
from rollfleet.learner.construction import construct
from rollfleet.learner.keywords import hints_names
from rollfleet.learner.options import Options
from rollfleet.weights.modules import copy_of, unwrapped
from rollfleet.worker.evaluation import PolicyEvaluation
from rollfleet_api.evaluation import EvaluationSpec
from rollfleet_api.messages import Evaluation


@hints_names("rollfleet.evaluate")
def evaluate(
    policy: Any,
    env: Any,
    episodes: int = 10,
    *,
    num_envs: int = 1,
    env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
    max_frames_per_traj: int | None = 0,
    exploration: str = "deterministic",
    seed: int = 0,
) -> Evaluation:
    """Run whole episodes of a policy in this process, and return the statistics of their returns.

    A module acts as a copy in `eval()` mode. The episodes are those of a collector's `evaluation` with this seed.

    Example:
        >>> import rollfleet
        >>> found = rollfleet.evaluate(None, "CartPole-v1", episodes=20, num_envs=4)
        >>> found.episodes, found.min_return <= found.mean_return <= found.max_return, found.mean_return < 50
        (20, True, True)

    Args:
        policy: A policy as of `rollfleet.Collector`. None: random actions.
        env: An environment as of `rollfleet.Collector`. An object that steps itself is closed at the end.
        episodes: Number of episodes.
        num_envs: Environments that are stepped together.
        env_kwargs: Keyword arguments of each environment.
        max_frames_per_traj: Frames after which an episode is truncated; 0, -1 or None: no limit.
        exploration: How actions are taken from the policy's distribution, as of `rollfleet.Collector`.
        seed: Seeds environments and generators.

    Raises:
        JobInvalid: A value cannot be used. The message names it.
        EnvironmentInvalid: An environment cannot be made, or has a space that is not supported.
        PolicyInvalid: The policy does not fit the environment.
    """
    count = whole_number(episodes, "episodes", least=1)
    if isinstance(module := unwrapped(policy), nn.Module):
        policy = copy_of(module).eval()
    given: dict[str, Any] = {"num_envs": num_envs, "env_kwargs": env_kwargs, "max_frames_per_traj": max_frames_per_traj}
    given |= {"exploration": exploration, "seed": seed, "trajs_per_batch": 1}
    workload = construct(env, policy, Options.of(given, Collector.__init__)).workload
    spec = workload.job.spec
    wanted = EvaluationSpec(every=1, episodes=count, exploration=spec.collect.exploration)
    job = workload.job.model_copy(update={"spec": spec.model_copy(update={"evaluation": wanted})})
    evaluation = PolicyEvaluation(replace(workload, job=job), 0)
    try:
        found = evaluation.evaluate(0)
    finally:
        evaluation.close()
    assert found is not None, "nothing stops it"
    return found

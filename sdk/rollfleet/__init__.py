"""Rollfleet collects reinforcement-learning data with workers anywhere, for a learner that iterates over it.

A `worker` steps `envs` with `policies` in a `rollout`, and sends the fragment through one side of `transports`: shared
memory (`processes`), or messages (`wire`) over `nats`. The `learner` takes it on the other side, admits it once, joins
fragments to a batch (`data`), and sends `weights` back. `collector` and `connection` are what users import, `cluster`
puts the workers into pods, `recording` reads along, and `cli` starts all of it.

This package must not import `rollfleet_operator`. Importing it loads nothing: a public name is imported at its first
use, so that a program without torch runs fast. No module may have a public name: once imported, it would hide the name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollfleet.checkpoint import Checkpoint
    from rollfleet.cluster.jobs import Jobs
    from rollfleet.cluster.settings import Cluster
    from rollfleet.collector import Collector
    from rollfleet.connection import connect
    from rollfleet.data.replay_buffer import ReplayBuffer
    from rollfleet.data.splitting import split_trajectories
    from rollfleet.envs.factory import make_env
    from rollfleet.envs.vector import make_vec
    from rollfleet.errors import RollfleetError
    from rollfleet.evaluation import evaluate
    from rollfleet.exploration import Exploration, exploring
    from rollfleet.policies.actor_critic import ActorCritic
    from rollfleet.policies.factory import make_policy
    from rollfleet.policies.random_policy import RandomPolicy
    from rollfleet.policies.running_norm import RunningNorm
    from rollfleet.processes.settings import Processes
    from rollfleet.progress import LearningCurve
    from rollfleet.recording.recorder import record
    from rollfleet.recording.recording import Recording
    from rollfleet.stats import Stats
    from rollfleet.tracking import track
    from rollfleet_api.job import CollectorJob

__all__ = [
    "ActorCritic",
    "Checkpoint",
    "Cluster",
    "Collector",
    "CollectorJob",
    "Exploration",
    "Jobs",
    "LearningCurve",
    "Processes",
    "RandomPolicy",
    "Recording",
    "ReplayBuffer",
    "RollfleetError",
    "RunningNorm",
    "Stats",
    "connect",
    "evaluate",
    "exploring",
    "make_env",
    "make_policy",
    "make_vec",
    "record",
    "split_trajectories",
    "track",
]

_HOMES = {
    "ActorCritic": "rollfleet.policies.actor_critic",
    "Checkpoint": "rollfleet.checkpoint",
    "Cluster": "rollfleet.cluster.settings",
    "Collector": "rollfleet.collector",
    "CollectorJob": "rollfleet_api.job",
    "Exploration": "rollfleet.exploration",
    "Jobs": "rollfleet.cluster.jobs",
    "LearningCurve": "rollfleet.progress",
    "Processes": "rollfleet.processes.settings",
    "RandomPolicy": "rollfleet.policies.random_policy",
    "Recording": "rollfleet.recording.recording",
    "ReplayBuffer": "rollfleet.data.replay_buffer",
    "RollfleetError": "rollfleet.errors",
    "RunningNorm": "rollfleet.policies.running_norm",
    "Stats": "rollfleet.stats",
    "connect": "rollfleet.connection",
    "evaluate": "rollfleet.evaluation",
    "exploring": "rollfleet.exploration",
    "make_env": "rollfleet.envs.factory",
    "make_policy": "rollfleet.policies.factory",
    "make_vec": "rollfleet.envs.vector",
    "record": "rollfleet.recording.recorder",
    "split_trajectories": "rollfleet.data.splitting",
    "track": "rollfleet.tracking",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rollfleet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]

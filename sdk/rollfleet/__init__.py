"""Rollfleet: collects reinforcement-learning data with workers anywhere, and hands it to a learner that iterates.

This package owns rollout, wire, weights and the learner's iterator. It must not import `rollfleet_operator`. Importing
it does nothing: names are looked up when they are used, so that a program that needs no torch does not load it. No
module may be called like a public name: it would hide it once it is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollfleet.acting.actor_critic import ActorCritic
    from rollfleet.collector import Collector
    from rollfleet.connection import connect
    from rollfleet.envs import make_env
    from rollfleet.errors import RollfleetError
    from rollfleet.exploration import Exploration, exploring
    from rollfleet.policies import RandomPolicy, make_policy
    from rollfleet.progress import LearningCurve
    from rollfleet.replay import ReplayBuffer
    from rollfleet.splitting import split_trajectories
    from rollfleet.stats import Stats
    from rollfleet.watching.observation import observe, record
    from rollfleet.watching.recording import Recording
    from rollfleet_api.job import CollectorJob

__all__ = [
    "ActorCritic",
    "Collector",
    "CollectorJob",
    "Exploration",
    "LearningCurve",
    "RandomPolicy",
    "Recording",
    "ReplayBuffer",
    "RollfleetError",
    "Stats",
    "connect",
    "exploring",
    "make_env",
    "make_policy",
    "observe",
    "record",
    "split_trajectories",
]

_HOMES = {
    "ActorCritic": "rollfleet.acting.actor_critic",
    "Collector": "rollfleet.collector",
    "CollectorJob": "rollfleet_api.job",
    "Exploration": "rollfleet.exploration",
    "LearningCurve": "rollfleet.progress",
    "RandomPolicy": "rollfleet.policies",
    "Recording": "rollfleet.watching.recording",
    "ReplayBuffer": "rollfleet.replay",
    "RollfleetError": "rollfleet.errors",
    "Stats": "rollfleet.stats",
    "connect": "rollfleet.connection",
    "exploring": "rollfleet.exploration",
    "make_env": "rollfleet.envs",
    "make_policy": "rollfleet.policies",
    "observe": "rollfleet.watching.observation",
    "record": "rollfleet.watching.observation",
    "split_trajectories": "rollfleet.splitting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rollfleet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""RLlib's environment runners as actors of Ray on this machine, as PPO and IMPALA sample from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample

from rllib_here import frames, ppo
from work import Running, Work, actors


@contextmanager
def _runners(work: Work, *, sync: bool) -> Iterator[Running]:
    ray.init(num_cpus=2 * work.workers, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    group = EnvRunnerGroup(config=ppo(work))  # with one in this process, whose weights are sent

    def of_all() -> tuple[Any, int]:
        episodes = synchronous_parallel_sample(worker_set=group, _uses_new_env_runners=True)
        return episodes, frames(episodes)

    def of_some() -> tuple[Any, int]:
        while not (ready := group.foreach_env_runner_async_fetch_ready("sample", tag="sample", timeout_seconds=1.0)):
            pass
        return ready, sum(map(frames, ready))

    pids = actors("SingleAgentEnvRunner")
    yield Running(next_batch=of_all if sync else of_some, send_weights=group.sync_weights, worker_pids=pids)
    group.stop()
    ray.shutdown()


sync = partial(_runners, sync=True)
async_ = partial(_runners, sync=False)

"""TorchRL's Collector in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torchrl.collectors import AsyncBatchedCollector, Collector
from torchrl.envs import EnvBase, GymWrapper, SerialEnv

from work import Plain, Running, Work, iterating, make


class Module(TensorDictModule):  # type: ignore[misc]
    """The plain policy in TorchRL's form: one module, for the cost of one call."""

    def __init__(self, work: Work) -> None:
        """Share the plain policy's weights."""
        plain = Plain(work)
        super().__init__(_Tuple(plain), in_keys=["observation"], out_keys=plain.keys)


class _Tuple(Plain):
    def __init__(self, plain: Plain) -> None:
        super(Plain, self).__init__()
        self.__dict__.update(plain.__dict__)

    def forward(self, observation: Any) -> Any:
        return self.act(observation)


def one(env: str) -> EnvBase:
    """Build one environment."""
    return GymWrapper(make(env), categorical_action_encoding=True)


def serial_env(env: str, num_envs: int) -> EnvBase:
    """Build TorchRL's vector of environments; a single environment stays single."""
    return one(env) if num_envs == 1 else SerialEnv(num_envs, partial(one, env))


def vector_env(env: str, num_envs: int) -> EnvBase:
    """Build Gymnasium's vector of environments."""
    makers = [partial(make, env)] * num_envs
    return GymWrapper(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), categorical_action_encoding=True)


@contextmanager
def _collector(work: Work, env: Callable[[str, int], EnvBase]) -> Iterator[Running]:
    collector = Collector(
        partial(env, work.env, work.num_envs), Module(work), frames_per_batch=work.frames, total_frames=-1
    )
    yield iterating(collector)
    collector.shutdown()


@contextmanager
def async_batched(work: Work) -> Iterator[Running]:
    """TorchRL's AsyncBatchedCollector: a process for each environment, and one for the policy."""
    collector = AsyncBatchedCollector(
        [partial(one, work.env)] * work.num_envs,
        policy_factory=partial(Module, work),
        frames_per_batch=work.frames,
        env_backend="multiprocessing",
        transport="auto",
    )
    yield iterating(collector)
    collector.shutdown()


serial = partial(_collector, env=serial_env)
vector = partial(_collector, env=vector_env)

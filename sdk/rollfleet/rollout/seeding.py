"""Seeds of a worker: all from the job's one seed, none used twice."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from rollfleet.system.generators import cpu_state, generators_kept

_ENVS, _ACTIONS, _TORCH, _AGAIN, _PROCESS, _EVALUATION = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """The seeds of one incarnation of one worker.

    Attributes:
        envs: One seed for each environment, below 2**32 because `numpy.random.seed` takes no more.
        actions: The seed of random actions.
        torch: The seed of torch's generator, which policies sample from.

    Example:
        >>> len(set(Seeds.derive(0, worker=3, incarnation=0, num_envs=8).envs))
        8
    """

    envs: list[int]
    actions: int
    torch: int

    @classmethod
    def derive(cls, job_seed: int, worker: int, incarnation: int, num_envs: int) -> "Seeds":
        """Derive the seeds of `worker` after `incarnation` restarts.

        Within a job and incarnation all environments' seeds are guaranteed to differ. Random draws from 2**32 values
        would give two of 64,000 environments the same seed in every third job. So the seed is `scale * index + offset`
        modulo 2**32, one to one because `scale` is odd, and a job has at most 2**16 workers of 2**16 environments.
        (Environments hash it again: neighbours are not alike.)
        """
        scale, offset = np.random.SeedSequence(job_seed, spawn_key=(_ENVS, incarnation)).generate_state(2).tolist()
        return cls(
            envs=[((scale | 1) * (worker << 16 | env) + offset) % (1 << 32) for env in range(num_envs)],
            actions=_wide(job_seed, worker, incarnation, _ACTIONS),
            torch=_wide(job_seed, worker, incarnation, _TORCH),
        )

    @classmethod
    def static(cls, seed: int, num_envs: int) -> "Seeds":
        """Return the seeds of `set_seed(seed, static_seed=True)`: this one for each environment, of any worker."""
        return cls(
            envs=[seed % (1 << 32)] * num_envs, actions=_wide(seed, 0, 0, _ACTIONS), torch=_wide(seed, 0, 0, _TORCH)
        )

    @classmethod
    def of_evaluation(cls, job_seed: int, part: int, num_envs: int) -> "Seeds":
        """Return the seeds of a part of each evaluation: `num_envs` episodes. No worker has any of its seeds."""
        stream = np.random.SeedSequence(job_seed, spawn_key=(_EVALUATION, part))
        *envs, actions, policy = stream.generate_state(num_envs + 2, np.uint64).tolist()
        return cls(envs=[seed % (1 << 32) for seed in envs], actions=actions >> 1, torch=policy >> 1)

    @staticmethod
    def of_process(job_seed: int, worker: int, incarnation: int) -> int:
        """Return the seed of the process of `worker`, for its global generators; below 2**32."""
        return _wide(job_seed, worker, incarnation, _PROCESS) % (1 << 32)

    def again(self, times: int) -> "Seeds":
        """Return these seeds with new ones for environments that were seeded `times` times before.

        The new ones differ from each other as those of `derive` do, by the same map. 0 times: the same seeds.
        """
        if times == 0:
            return self
        scale, offset = np.random.SeedSequence(times, spawn_key=(_AGAIN,)).generate_state(2).tolist()
        return replace(self, envs=[((scale | 1) * seed + offset) % (1 << 32) for seed in self.envs])


def _wide(job_seed: int, worker: int, incarnation: int, stream: int) -> int:
    sequence = np.random.SeedSequence(job_seed, spawn_key=(worker, incarnation, stream))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


class TorchStream:
    """A private stream of random numbers for torch's default generators.

    A policy samples from the default generator, and so may the learner in the same process. Inside `active` the default
    generator continues this stream; outside it is restored. So neither changes the other's numbers.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start a stream for the CPU and, if it is another device, for `device`."""
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        devices = [device] if device.type == "cuda" else []
        self._cuda = {each: torch.Generator(each).manual_seed(seed).get_state() for each in devices}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the default generators continue this stream until the context ends."""
        with generators_kept(self._cuda):
            torch.set_rng_state(self._cpu)
            for device, state in self._cuda.items():
                torch.cuda.set_rng_state(state, device)
            try:
                yield
            finally:
                self._cpu = cpu_state()
                self._cuda = {device: torch.cuda.get_rng_state(device) for device in self._cuda}

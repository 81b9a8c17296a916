"""The work that all contenders do: the environments, and the policy in plain torch and in plain numpy."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import psutil
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[Any]
PIXELS = (84, 84, 4)
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a contender.

    Attributes:
        env: What `make` takes.
        num_envs: Of each worker.
        steps: Of each environment in a batch.
        critic: The policy also puts out a value.
        hidden: Widths of the policy's hidden layers.
        workers: Processes; 0: in this one.
        weights: Are sent after each batch.
        parameters: So many more numbers are sent with the weights.
    """

    env: str = "CartPole-v1"
    num_envs: int = 8
    steps: int = 128
    critic: bool = False
    hidden: Sequence[int] = (64, 64)
    workers: int = 0
    weights: bool = False
    parameters: int = 0

    @property
    def frames(self) -> int:
        """The frames of one worker's batch."""
        return self.num_envs * self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started contender.

    Attributes:
        next_batch: Collects a batch, returns it and how many frames it has.
        send_weights: Sends the policy's weights, as one does after an update.
        policy: Whose weights they are.
        worker_pids: Its worker processes; empty: it has none.
    """

    next_batch: Callable[[], tuple[Any, int]]
    send_weights: Callable[[], object] | None = None
    policy: "Plain | None" = None
    worker_pids: Sequence[int] = ()


def iterating(collector: Any, policy: "Plain | None" = None, worker_pids: Sequence[int] = ()) -> Running:
    """Return the contender that iterates over a started collector, ours or TorchRL's."""
    batches = iter(collector)
    return Running(
        next_batch=lambda: ((batch := next(batches)), batch.numel()),
        send_weights=collector.update_policy_weights_,
        policy=policy,
        worker_pids=worker_pids,
    )


class Pixels(gymnasium.Env[Array, np.int64]):
    """An environment with free images, so that their transport is measured. Episodes of 1,000 frames."""

    def __init__(self, shape: tuple[int, ...] = PIXELS, *, stacked: bool = False) -> None:
        """Create it. `stacked`: observations are the last four frames of a film; otherwise all images are new."""
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._film = np.random.default_rng(0).integers(0, 255, (64, *shape), dtype=np.uint8)
        if stacked:
            frames = np.ascontiguousarray(self._film[..., 0])
            self._film = np.stack([np.stack([frames[i - 3 + k] for k in range(4)], -1) for i in range(64)])
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._at = 0
        return self._film[0], {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Return the next image."""
        self._at += 1
        return self._film[self._at % 64], 1.0, False, self._at == 1000, {}


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose steps take longer, as those of a simulator elsewhere do."""

    def __init__(self, step_s: float, *, tail_s: float = 0.0) -> None:
        """Create it. `tail_s`: one step of 100, at random, takes this much longer."""
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self._step_s, self._tail_s = step_s, tail_s

    def step(self, action: Any) -> Any:
        """Wait, and step."""
        time.sleep(self._step_s + (self._tail_s if self.np_random.random() < 0.01 else 0.0))
        return super().step(action)


def make(env: str) -> gymnasium.Env[Any, Any]:
    """Build one environment.

    `bytes-N` has observations of N bytes. `slow-N` is CartPole that waits for N µs a step, `tail-N` 50 ms more in some.
    """
    kind, _, size = env.partition("-")
    if kind in ("pixels", "stacked"):
        return Pixels(stacked=kind == "stacked")
    if kind == "bytes":
        return Pixels((int(size),))
    if kind in ("slow", "tail"):
        return Slow(int(size) / 1e6, tail_s=0.05 if kind == "tail" else 0.0)
    return gymnasium.make(env, disable_env_checker=True)


def is_own(env: str) -> bool:
    """Whether only `make` can build it."""
    return env.partition("-")[0] in ("pixels", "stacked", "bytes", "slow", "tail")


class Plain(nn.Module):
    """The policy: an MLP with tanh, a categorical or normal distribution, in as few torch calls as possible.

    Of images it looks at 64 bytes: a network that sees all of them would hide what carrying them costs.
    """

    def __init__(self, work: Work) -> None:
        """Create the same weights in every process."""
        super().__init__()
        env = make(work.env)
        space, actions = env.observation_space, env.action_space
        assert space.shape is not None
        self.discrete = isinstance(actions, gymnasium.spaces.Discrete)
        outputs = int(actions.n) if isinstance(actions, gymnasium.spaces.Discrete) else math.prod(actions.shape or ())
        self.image = space.dtype == np.uint8
        inputs = 64 if self.image else math.prod(space.shape)
        env.close()
        torch.manual_seed(0)
        self.actor = tower(inputs, work.hidden, outputs)
        self.critic = tower(inputs, work.hidden, 1) if work.critic else None
        self.log_std = nn.Parameter(torch.zeros(outputs))
        self.ballast = nn.Parameter(torch.zeros(work.parameters)) if work.parameters else None
        traced = ["marker", "acted_at", "pid"] if work.parameters else []
        self.keys = ["action", "action_log_prob", *(["state_value"] if work.critic else []), *traced]

    def act(self, observation: Tensor) -> tuple[Tensor, ...]:
        """Actions of observations [n, ...], log-probabilities [n], and values [n, 1] if there is a critic."""
        if self.image:
            observation = observation.flatten(1)[:, :64]
        if observation.dtype is not torch.float32:
            observation = observation.float()
        out = run(self.actor, observation)
        if self.discrete:
            log_probs = torch.log_softmax(out, -1)
            chosen = (log_probs - torch.empty_like(log_probs).exponential_().log_()).argmax(-1, keepdim=True)
            action, log_prob = chosen.squeeze(-1), log_probs.gather(-1, chosen).squeeze(-1)
        else:
            noise = torch.randn_like(out)
            action = torch.addcmul(out, noise, self.log_std.exp())
            log_prob = (-0.5 * noise * noise - (self.log_std + HALF_LOG_2PI)).sum(-1)
        values = (action, log_prob) if self.critic is None else (action, log_prob, run(self.critic, observation))
        if self.ballast is None:
            return values
        # The weights that act, the time by the clock that all processes of a machine share, and the process.
        traced = (float(self.ballast[-1]), time.monotonic(), float(os.getpid()))
        return (*values, *(torch.full(action.shape[:1], value, dtype=torch.float64) for value in traced))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Return the outputs of `act` by name."""
        return dict(zip(self.keys, self.act(observation), strict=False))


def spawned() -> list[int]:
    """Return the worker processes of this process, started by multiprocessing or by Rollfleet."""
    commands = {child.pid: " ".join(child.cmdline()) for child in psutil.Process().children()}
    return [pid for pid, command in commands.items() if "spawn_main" in command or "worker_main" in command]


def actors(kind: str) -> list[int]:
    """Worker processes that are Ray's actors of a class; Ray's own processes are also called `ray::...`."""
    return [child.pid for child in psutil.Process().children(recursive=True) if f"ray::{kind}" in _command(child)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def tower(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """A multi-layer perceptron."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def run(layers: nn.Sequential, value: Tensor) -> Tensor:
    """`layers(value)` without the cost of calling modules."""
    for layer in layers:
        value = F.linear(value, layer.weight, layer.bias) if isinstance(layer, nn.Linear) else torch.tanh(value)
    return value


class PlainNumpy:
    """The same policy in numpy."""

    def __init__(self, plain: Plain) -> None:
        """Copy the weights."""
        self._actor = _layers(plain.actor)
        self._critic = _layers(plain.critic) if plain.critic else None
        self._std, self._log_std = plain.log_std.detach().exp().numpy(), plain.log_std.detach().numpy()
        self._discrete = plain.discrete
        self._random = np.random.default_rng(0)

    def act(self, observation: Array) -> tuple[Array, ...]:
        """See `Plain.act`."""
        if observation.dtype != np.float32:
            observation = observation.astype(np.float32)
        out = _run(self._actor, observation)
        if self._discrete:
            out = out - out.max(-1, keepdims=True)
            log_probs = out - np.log(np.exp(out).sum(-1, keepdims=True))
            action = (log_probs + self._random.gumbel(size=out.shape)).argmax(-1)
            log_prob = log_probs[np.arange(len(action)), action]
        else:
            noise = self._random.standard_normal(out.shape, dtype=np.float32)
            action = out + self._std * noise
            log_prob = (-0.5 * noise * noise - (self._log_std + HALF_LOG_2PI)).sum(-1)
        return (action, log_prob) if self._critic is None else (action, log_prob, _run(self._critic, observation))


def _layers(layers: nn.Sequential) -> list[tuple[Array, Array]]:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return [(each.weight.detach().numpy().T.copy(), each.bias.detach().numpy()) for each in linear]


def _run(layers: list[tuple[Array, Array]], value: Array) -> Array:
    for weight, bias in layers[:-1]:
        value = np.tanh(value @ weight + bias)
    weight, bias = layers[-1]
    return value @ weight + bias

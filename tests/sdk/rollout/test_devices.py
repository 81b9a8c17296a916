"""`env_device` and `no_cuda_sync`: environments that make tensors, and waits for copies."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict import TensorDict
from tests.job_server import Connect, Server
from tests.sdk.places import Collect
from tests.sdk.rollouts import always_1
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rollfleet import Collector
from rollfleet.errors import RollfleetError
from rollfleet.rollout.trajectory_ids import split

SMALL: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 32}


class OfTensors(gymnasium.Env[Any, Any]):
    """Observes the step of its episode, whether actions come as tensors, and whether on `meta`; 5 frames each."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gymnasium.spaces.Discrete(2)
    moved_to = "nowhere"

    def to(self, device: torch.device) -> None:
        self.moved_to = device.type

    def _seen(self, action: Any) -> Tensor:
        of_tensor = isinstance(action, Tensor)
        return torch.tensor([float(self.step_count), of_tensor, of_tensor and action.device.type == self.moved_to])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_count = 0
        return self._seen(None), {}

    def step(self, action: Any) -> Any:
        self.step_count += 1
        return self._seen(action), torch.tensor(2.0), torch.tensor(self.step_count == 5), torch.tensor(False), {}


class VectorOfTensors(VectorEnv[Any, Any, Any]):
    """The same, as a vector that steps itself, as simulators on a GPU do."""

    single_observation_space, single_action_space = OfTensors.observation_space, OfTensors.action_space

    def __init__(self, num_envs: int = 2) -> None:
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.envs_inside = [OfTensors() for _ in range(num_envs)]

    def to(self, device: torch.device) -> None:
        for env in self.envs_inside:
            env.to(device)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return torch.stack([env.reset()[0] for env in self.envs_inside]), {}

    def step(self, actions: Any) -> Any:
        results = [env.step(action) for env, action in zip(self.envs_inside, actions, strict=True)]
        seen, rewards, terminated, truncated = (torch.stack(part) for part in list(zip(*results, strict=True))[:4])
        info = {}
        if terminated.all():
            info, (seen, _) = {"final_obs": seen}, self.reset()
        return seen, rewards, terminated, truncated, info


@pytest.mark.parametrize("make", [OfTensors, VectorOfTensors])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_actions_go_to_env_device_and_tensors_from_there_are_in_the_batch(
    collect: Collect, device: str, make: Callable[[], Any]
) -> None:
    batch = next(collect(make, always_1, env_device=device, **SMALL))
    step = batch["observation"][..., 0]
    assert torch.equal(step, (torch.arange(step.shape[1]) % 5).float().expand(step.shape))
    assert torch.equal(batch["next", "observation"][..., 0], step + 1)  # an episode's last one, too
    assert (batch["next", "observation"][..., 1:] == 1).all()  # actions are tensors on that device
    assert (batch["next", "reward"] == 2).all()
    assert torch.equal(batch["next", "done"].squeeze(-1), step == 4)
    assert batch["action"].device.type == "cpu"


def test_a_list_of_env_devices_has_one_for_each_worker(apart: Collect) -> None:
    class Where(OfTensors):
        def _seen(self, action: Any) -> Tensor:
            return torch.tensor([float(action is not None and action.is_meta), 0.0, 0.0])

    batch = next(apart(Where, always_1, env_device=["cpu", "meta"], **SMALL))
    workers = torch.tensor([split(int(row[0]))[0] for row in batch["collector", "traj_ids"]])
    expected = workers[:, None].expand(batch.batch_size).float()
    assert torch.equal(batch["next", "observation"][..., 0], expected)


@pytest.mark.parametrize("name", ["OfTensors", "VectorOfTensors"])
def test_a_job_sets_the_device_of_its_environments_too(connect: Connect, name: str, server: Server) -> None:
    vectorization = "Sync" if name == "OfTensors" else "Native"
    env = {"entrypoint": f"{__name__}:{name}", "numEnvs": 2, "vectorization": vectorization, "device": "cpu"}
    server.start_workers(env=env, policy={"random": {}}, collect={"framesPerBatch": 32})
    batch = next(connect())
    assert (batch["next", "observation"][..., 1:] == 1).all()
    assert (batch["next", "reward"] == 2).all()


def test_a_vector_env_object_has_a_device_too(here: Callable[..., Collector]) -> None:
    batch = next(here(VectorOfTensors(), always_1, env_device="meta", frames_per_batch=32))
    assert (batch["next", "observation"][..., 1:] == 1).all()


def test_environments_of_arrays_are_on_the_cpu(collect: Collect) -> None:
    assert next(collect("CartPole-v1", env_device="cpu", **SMALL)).shape == (2 * collect.workers, 16 // collect.workers)
    with pytest.raises(RollfleetError, match=r"returns NumPy arrays in CPU memory.*remove `env_device`"):
        next(collect("CartPole-v1", env_device="meta", **SMALL))


class Copies(TorchDispatchMode):
    """Record which copies to `meta` are waited for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waited: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func) == "aten._to_copy.default" and str(kwargs.get("device")) == "meta":
            self.waited.append(not kwargs.get("non_blocking", False))
        return func(*args, **kwargs)


@pytest.mark.parametrize("no_cuda_sync", [True, False])
def test_no_cuda_sync_decides_whether_copies_to_env_device_are_waited_for(
    here: Callable[..., Collector], no_cuda_sync: bool
) -> None:
    collector = here(OfTensors, always_1, no_cuda_sync=no_cuda_sync, env_device="meta", **SMALL)
    with Copies() as copies:
        next(collector)
    assert set(copies.waited) == {not no_cuda_sync}


@pytest.mark.parametrize("no_cuda_sync", [True, False])
def test_no_cuda_sync_decides_so_of_copies_to_device_in_every_place(
    collect: Collect, no_cuda_sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patch `to`, because a dispatch mode sees only its own thread."""
    asked: list[bool] = []
    to = TensorDict.to

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["non_blocking"])
        return to(self, *args, **kwargs)

    monkeypatch.setattr(TensorDict, "to", recorded)
    assert next(collect("CartPole-v1", device="meta", no_cuda_sync=no_cuda_sync, **SMALL)).device.type == "meta"
    assert set(asked) == {no_cuda_sync}


def test_the_learner_owns_the_memory_of_batches_on_the_cpu(here: Callable[..., Collector]) -> None:
    """The rollout reuses its memory two batches later."""
    collector = here("CartPole-v1", device="cpu", **SMALL)
    first = next(collector)
    kept = first.clone()
    for _ in range(3):
        next(collector)
    assert torch.equal(first["observation"], kept["observation"])
    assert first.device == torch.device("cpu")

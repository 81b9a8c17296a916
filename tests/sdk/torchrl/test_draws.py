"""Programs that seed before they make their collector: `rollfleet.torchrl` draws, acts and resets as TorchRL does."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential, set_skip_existing
from tests.sdk.torchrl.programs import linear, pendulum
from torch import nn
from torchrl.data import Bounded, LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, StepCounter, Transform, TransformedEnv, VecNorm
from torchrl.envs.utils import ExplorationType
from torchrl.modules import AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule, ProbabilisticActor, TanhNormal

from rollfleet.torchrl import Collector

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL


def counted(tensordict: TensorDict) -> TensorDict:
    """Act by a count that only the policy writes."""
    count = tensordict.get("count", None)
    count = torch.full((1,), 0.5) if count is None else count + 0.01
    return tensordict.set("count", count).set("action", count.clone())


class Calls(nn.Module):
    """Acts by the number of its calls."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.calls += 0.01
        return self.calls.clone()


def drawing(**given: Any) -> Any:
    net = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    first = TensorDictModule(net, ["observation"], ["loc", "scale"])
    given |= {"distribution_class": TanhNormal, "default_interaction_type": ExplorationType.RANDOM}
    return ProbabilisticActor(first, ["loc", "scale"], spec=Bounded(-2, 2, (1,)), return_log_prob=True, **given)


def noisy(noise: Any, spec: Any = None) -> Any:
    return TensorDictSequential(linear(), noise(spec=spec))


def counting(**keywords: Any) -> Any:
    return TransformedEnv(GymEnv("Pendulum-v1", device="cpu"), StepCounter(max_steps=7, **keywords))


def random() -> None:
    return None


def calls() -> Any:
    return TensorDictModule(Calls(), ["observation"], ["action"])


def normalised() -> Any:
    return TransformedEnv(pendulum(), VecNorm(in_keys=["observation"]))


UNLIKE = partial(counting, update_done=False)
BOX = Bounded(-2, 2, (1,))

PROGRAMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "random": (pendulum, random, {}),
    "drawing": (counting, drawing, {}),
    "drawing into a buffer": (pendulum, drawing, {"replay_buffer": 0}),
    "one sample": (pendulum, partial(drawing, num_samples=1), {}),
    "random frames": (pendulum, drawing, {"init_random_frames": 20}),
    "random frames of a filled buffer": (
        pendulum,
        partial(noisy, AdditiveGaussianModule, BOX),
        {"init_random_frames": 60, "replay_buffer": 30},
    ),
    "a state of the policy": (pendulum, lambda: counted, {}),
    "a state of the policy and resets": (pendulum, lambda: counted, {"reset_at_each_iter": True}),
    "a policy that counts its calls": (pendulum, calls, {}),
    "noise": (pendulum, partial(noisy, OrnsteinUhlenbeckProcessModule, BOX), {}),
    "noise without a spec": (pendulum, partial(noisy, AdditiveGaussianModule), {}),
    "truncated without done": (UNLIKE, linear, {}),
    "trajectories, truncated without done": (UNLIKE, linear, {"split_trajs": True}),
    "normalised": (normalised, linear, {}),
}


def program(kind: Any, make: Any, policy: Any, keywords: dict[str, Any], then: str = "") -> list[Any]:
    """Return what a program draws and collects; after its second batch, `then` is called."""
    torch.manual_seed(0)
    env, acting, buffer = make(), policy(), None
    env.set_seed(0)
    if (frames := keywords.get("replay_buffer")) is not None:
        buffer = ReplayBuffer(storage=LazyTensorStorage(200), batch_size=4)
        if frames:
            buffer.extend(env.rollout(frames, break_when_any_done=False))
        keywords = keywords | {"replay_buffer": buffer, "track_traj_ids": False}
    collector = kind(env, acting, frames_per_batch=20, total_frames=80, **keywords)
    found: list[Any] = [torch.rand(())]
    for number, batch in enumerate(collector):
        found += [batch if buffer is None else buffer[:], torch.rand(())]
        if number == 1 and then == "reset":
            collector.reset()
        if number == 1 and then == "restore":
            collector.load_state_dict(collector.state_dict())
    collector.shutdown()
    return found


def assert_alike(*given: Any, ids: bool = True) -> None:
    from torchrl.collectors import Collector as Theirs

    found, expected = (program(kind, *given) for kind in (Collector, Theirs))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(ours, torch.Tensor):
            assert torch.equal(ours, theirs)
            continue
        if not ids:
            ours, theirs = ours.exclude("collector"), theirs.exclude("collector")
        assert (ours.batch_size, ours.device, {*ours.keys(True, True)}) == (
            theirs.batch_size,
            theirs.device,
            {*theirs.keys(True, True)},
        )
        assert (ours == theirs).all()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_seeds_first_has_torchrls_draws_and_batches(name: str) -> None:
    assert_alike(*PROGRAMS[name])


def test_a_policy_is_called_no_more_after_a_reset_and_keeps_what_it_wrote() -> None:
    assert_alike(pendulum, calls, {}, "reset")
    assert_alike(pendulum, lambda: counted, {}, "reset")


def test_a_restored_collector_goes_on_in_its_episodes() -> None:
    assert_alike(normalised, linear, {}, "restore", ids=False)


def test_outputs_of_the_last_step_may_be_kept() -> None:
    with set_skip_existing(True):
        assert_alike(pendulum, drawing, {})


class Frames(Transform):  # type: ignore[misc]
    """Adds the frames of its collector to the observation."""

    def _call(self, following: Any) -> Any:
        return following.set("observation", following["observation"] + getattr(self.collector, "_frames", 0))

    def _reset(self, tensordict: Any, following: Any) -> Any:
        return self._call(following)


def test_a_transform_knows_its_collector() -> None:
    assert_alike(lambda: TransformedEnv(GymEnv("Pendulum-v1"), Frames()), linear, {})

"""Seeds, spaces, options and memory of a rollout. (Other files test policies and sequences of frames.)"""

from math import log

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.sdk.rollouts import Sampling, always_0, mlp, rollout_of, towards_fall

from rollfleet.data.batch import Fragment, to_batch
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.errors import EnvironmentInvalid
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.policies.random_policy import UniformActions
from rollfleet_api.job import EnvSpec, Vectorization

CARTPOLE = EnvSpec(id="CartPole-v1", num_envs=3)
PENDULUM = EnvSpec(id="Pendulum-v1", num_envs=2)


@pytest.mark.parametrize("vectorization", [Vectorization.SYNC, Vectorization.NATIVE])
def test_a_fragment_stays_valid_until_the_second_next_collect(vectorization: Vectorization) -> None:
    rollout = rollout_of(EnvSpec(id="CartPole-v1", num_envs=3, vectorization=vectorization), always_0)
    first = rollout.collect(version=0)
    kept = {key: value.clone() for key, value in first.steps.items()}
    final = first.final["observation",].clone()
    second = rollout.collect(version=1)
    assert all(torch.equal(value, kept[key]) for key, value in first.steps.items())
    assert torch.equal(first.final["observation",], final)
    third = rollout.collect(version=2)
    assert all(value.data_ptr() == third.steps[key].data_ptr() for key, value in first.steps.items())
    assert all(value.data_ptr() != third.steps[key].data_ptr() for key, value in second.steps.items())


LENGTHS = (12, 5, 30, 30, 1, 42)  # shorter, longer, and the same again


@pytest.mark.parametrize("vectorization", [Vectorization.SYNC, Vectorization.NATIVE])  # NATIVE resets in a step
def test_changed_lengths_leave_no_gap_and_no_seam(vectorization: Vectorization) -> None:
    spec = EnvSpec(id="CartPole-v1", num_envs=3, vectorization=vectorization)
    whole = to_batch(rollout_of(spec, towards_fall, steps=sum(LENGTHS)).collect(version=0))
    changing = rollout_of(spec, towards_fall, steps=LENGTHS[0])
    parts = [to_batch(changing.collect(version=0, steps=steps)).clone() for steps in LENGTHS]
    assert [part.shape[1] for part in parts] == list(LENGTHS)
    for key in whole.keys(include_nested=True, leaves_only=True):
        assert torch.equal(torch.cat([part[key] for part in parts], dim=1), whole[key]), key
    assert to_batch(changing.collect(version=0)).shape[1] == LENGTHS[-1]  # until it is changed


@pytest.mark.parametrize("other", [{"seed": 6}, {"worker": 2}, {"incarnation": 3}])
@pytest.mark.parametrize("random_actions", [False, True])
def test_another_seed_worker_or_incarnation_gives_other_frames(other: dict[str, int], random_actions: bool) -> None:
    def first_fragment(seed: int = 5, worker: int = 1, incarnation: int = 2) -> Fragment:
        rollout = rollout_of(PENDULUM, mlp(PENDULUM), seed=seed, worker=worker, incarnation=incarnation)
        return rollout.collect(version=0, random_actions=random_actions)

    one, two = first_fragment(), first_fragment(**other)
    for key in (("observation",), ("action",)):
        assert not torch.isclose(one.steps[key], two.steps[key]).any()


def test_random_discrete_actions_have_the_uniform_log_probability() -> None:
    steps = rollout_of(CARTPOLE, mlp(CARTPOLE), steps=100).collect(version=0, random_actions=True).steps
    assert torch.allclose(steps["action_log_prob",], torch.tensor(-log(2)))
    assert 0.3 < steps["action",].double().mean() < 0.7
    assert not steps["state_value",].any()  # the policy was not called


def test_random_actions_of_a_box_have_the_density_of_their_distribution() -> None:
    low, high = np.array([-np.inf, 1, -np.inf, -2]), np.array([np.inf, np.inf, 2, 2])
    (actions,), log_prob = UniformActions(gymnasium.spaces.Box(low, high, dtype=np.float64)).sample(20_000)
    free, above, below, between = actions.unbind(1)
    expected = torch.distributions.Normal(0, 1).log_prob(free) - (above - 1) - (2 - below) - log(4)
    torch.testing.assert_close(log_prob, expected.float())
    assert log_prob.dtype == torch.float32
    assert actions.dtype == torch.float64
    means, deviations = torch.tensor([0.0, 2, 1, 0]).double(), torch.tensor([1, 1, 1, 2 * 3**-0.5]).double()
    torch.testing.assert_close(actions.mean(0), means, atol=0.05, rtol=0)
    torch.testing.assert_close(actions.std(0), deviations, atol=0.05, rtol=0)
    assert above.min() > 1
    assert below.max() < 2
    assert 1.8 < between.max() < 2
    assert -2 < between.min() < -1.8


class Pixels(Sampling):
    """Images that count the steps; actions in two dimensions, float64."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Box(np.array([[0.0, -1.0]]), np.array([[10.0, 1.0]]), dtype=np.float64)
    length = 5

    def __init__(self) -> None:
        self._image = np.zeros((8, 8, 3), np.uint8)

    def seen(self) -> np.ndarray:
        self._image[...] = self.frame
        return self._image  # always the same array, which changes later


def test_images_stay_uint8_when_the_environment_reuses_its_array() -> None:
    policy = ActorCritic(Pixels.observation_space, Pixels.action_space)
    batch = to_batch(rollout_of(SerialVectorEnv([Pixels] * 2), policy, steps=12).collect(version=0))
    assert batch["observation"].dtype == batch["next", "observation"].dtype == torch.uint8
    assert batch["observation"][0, :, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert batch["next", "observation"][1, :, 7, 7, 2].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    assert batch["action"].shape == (2, 12, 1, 2)
    assert batch["action"].dtype == torch.float64
    assert batch["action_log_prob"].shape == (2, 12)


class Forgetful(gymnasium.vector.VectorWrapper):
    """A vector environment that declares SameStep but omits final observations."""

    def step(self, actions):  # type: ignore[no-untyped-def]
        *rest, info = self.env.step(actions)
        return *rest, {key: value for key, value in info.items() if key != "final_obs"}


def test_an_environment_without_final_observations_is_refused() -> None:
    env = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    rollout = rollout_of(Forgetful(env), always_0, steps=50)
    with pytest.raises(EnvironmentInvalid, match="no 'final_obs'"):
        rollout.collect(version=0)

"""Built-in policies, and policies of entrypoints."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import AffineTransform, TanhTransform

from rollfleet.errors import EnvironmentInvalid, JobInvalid, PolicyInvalid
from rollfleet.exploration import Exploration, exploration, exploring
from rollfleet.policies.actor_critic import PRE_TANH_LIMIT, ActorCritic
from rollfleet.policies.factory import make_policy
from rollfleet.policies.observation_encoder import ObservationEncoder
from rollfleet.policies.random_policy import RandomPolicy
from rollfleet_api.job import MlpSpec, PolicySpec, RandomSpec

SEEN = Box(-1, 1, (3,))
TORQUES = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
FREE = Box(-np.inf, np.inf, (2,))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def spread(policy: ActorCritic) -> ActorCritic:
    """Weights as after training: means and logits far from 0."""
    with torch.no_grad():
        head = policy.actor[-1]
        assert isinstance(head, nn.Linear)
        head.weight.normal_(0, 1)
        head.bias.normal_(0, 1)
    return policy


def make(observation_space: object, action_space: object, width: int = 1) -> nn.Module:
    return nn.Linear(width, width)


def make_nothing(observation_space: object, action_space: object) -> None:
    return None


@pytest.mark.parametrize("actions", [Discrete(2), FREE, TORQUES])
def test_another_default_dtype_of_torch_changes_no_policy(actions: Any) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        policy = ActorCritic(SEEN, actions)
        output = policy(torch.zeros(2, 3, dtype=torch.float32))
        log_prob, _, value = policy.evaluate(torch.zeros(2, 3, dtype=torch.float32), output["action"])
    finally:
        torch.set_default_dtype(torch.float32)
    given = (output["action_log_prob"], output["state_value"], log_prob, value)
    assert {each.dtype for each in given} == {torch.float32}


def test_towers_are_separate_and_orthogonal_with_the_gains_of_ppo() -> None:
    policy = ActorCritic(SEEN, Discrete(4), hidden=[32, 16], activation="Relu")
    for tower, gain, outputs in ((policy.actor, 0.01, 4), (policy.critic, 1.0, 1)):
        linears = [layer for layer in tower if isinstance(layer, nn.Linear)]
        assert [tuple(layer.weight.shape) for layer in linears] == [(32, 3), (16, 32), (outputs, 16)]
        assert [type(layer) for layer in tower][1::2] == [nn.ReLU, nn.ReLU]
        for layer, expected in zip(linears, (2**0.5, 2**0.5, gain), strict=True):
            singular = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(singular, torch.full_like(singular, expected))
            assert not layer.bias.any()


@pytest.mark.parametrize("space", [TORQUES, FREE])
def test_the_most_likely_box_action_is_the_mean_within_its_bounds(space: Box) -> None:
    policy, observation = spread(ActorCritic(SEEN, space)), torch.randn(5, 3)
    with exploring(Exploration.MODE):
        action = policy(observation)["action"]
    expected = policy.actor(observation)
    if space is TORQUES:
        limited = expected.clamp(-PRE_TANH_LIMIT, PRE_TANH_LIMIT)
        expected = torch.tanh(limited) * torch.tensor([2.0, 5.0]) + torch.tensor([0.0, 5.0])
    torch.testing.assert_close(action, expected)


@pytest.mark.parametrize("space", [TORQUES, FREE])
def test_box_actions_are_sampled_with_their_density(space: Box) -> None:
    policy = ActorCritic(SEEN, space)
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([-1.0, 0.3]))
    observation = torch.randn(20_000, 3)
    with torch.inference_mode():
        out = policy(observation)
        normal = Normal(policy.actor(observation), policy.log_std.exp())
    inside = torch.ones(20_000, dtype=torch.bool)
    distribution: torch.distributions.Distribution = Independent(normal, 1)
    if space is TORQUES:
        scale = AffineTransform(torch.tensor([0.0, 5.0]), torch.tensor([2.0, 5.0]), event_dim=1)
        distribution = TransformedDistribution(distribution, [TanhTransform(), scale])
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        assert ((out["action"] > low) & (out["action"] < high)).all()
        inside = (((out["action"] - low) / (high - low) - 0.5).abs() < 0.495).all(-1)
    assert inside.float().mean() > 0.9
    expected = distribution.log_prob(out["action"])
    torch.testing.assert_close(out["action_log_prob"][inside], expected[inside], atol=1e-3, rtol=1e-3)
    raw = out["action"] if space is FREE else torch.atanh((out["action"] - low) / (high - low) * 2 - 1)
    torch.testing.assert_close(raw.std(0), policy.log_std.exp().detach(), rtol=0.05, atol=0)


@pytest.mark.parametrize("space", [Discrete(4, start=2), TORQUES, FREE, Box(-3, 3, (2, 2)), Box(-1, 1, (), np.float64)])
@pytest.mark.parametrize("mean", [0.0, 4.0, 30.0])
def test_evaluate_gives_the_recorded_log_probability(space: Box | Discrete, mean: float) -> None:
    policy = spread(ActorCritic(SEEN, space))
    with torch.no_grad():
        policy.actor[-1].bias.add_(mean)  # type: ignore[operator]
    observation = torch.randn(4, 25, 3)
    out = policy(observation.reshape(100, 3))
    action = out["action"].reshape(4, 25, *(space.shape or ()))
    assert all(np.asarray(element) in space for element in out["action"].detach().numpy())
    log_prob, entropy, value = policy.evaluate(observation, action)
    assert log_prob.shape == entropy.shape == (4, 25)
    torch.testing.assert_close(log_prob.reshape(-1), out["action_log_prob"], atol=2e-2, rtol=1e-3)
    torch.testing.assert_close(value, out["state_value"].reshape(4, 25, 1))
    (log_prob.exp().sum() + entropy.sum() + value.sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in policy.parameters())


def test_evaluate_is_finite_at_the_very_bounds() -> None:
    policy = ActorCritic(SEEN, TORQUES)
    bounds = torch.from_numpy(np.stack([TORQUES.low, TORQUES.high]))
    log_prob, _, _ = policy.evaluate(torch.randn(2, 3), bounds)
    log_prob.sum().backward()
    assert log_prob.isfinite().all()
    assert policy.log_std.grad is not None
    assert policy.log_std.grad.isfinite().all()


def test_entropy_is_that_of_the_distribution_before_tanh() -> None:
    policy = ActorCritic(SEEN, TORQUES)
    _, entropy, _ = policy.evaluate(torch.randn(6, 3), torch.ones(6, 2))
    torch.testing.assert_close(entropy, Independent(Normal(torch.zeros(6, 2), 1.0), 1).entropy())


def test_float64_image_and_discrete_observations_are_supported() -> None:
    cases: list[tuple[Box | Discrete, Tensor]] = [
        (Box(-1, 1, (3,), np.float64), torch.ones(2, 3, dtype=torch.float64)),
        (Box(0, 255, (4, 4, 3), np.uint8), torch.full((2, 4, 4, 3), 255, dtype=torch.uint8)),
        (Discrete(5, start=1), torch.tensor([1, 5])),
        (Box(-1, 1, ()), torch.ones(2)),
    ]
    for space, observation in cases:
        policy = ActorCritic(space, Discrete(2))
        out = policy(observation)
        value = policy.evaluate(observation, out["action"])[2]
        torch.testing.assert_close(out["state_value"], value)


def test_exploration_is_random_outside_and_nests() -> None:
    assert exploration() is Exploration.RANDOM
    with exploring(Exploration.MEAN):
        with exploring(Exploration.MODE):
            assert exploration() is Exploration.MODE
        assert exploration() is Exploration.MEAN
    assert exploration() is Exploration.RANDOM


def test_exploration_has_the_collectors_names_and_other_values_are_an_error() -> None:
    """Each other value made policies act without exploration."""
    for how in Exploration:
        with exploring(how.lower()):
            assert exploration() is how
    for wrong in ("x", 5, None):
        with pytest.raises(JobInvalid, match=r"expected one of \['random', .* got "), exploring(wrong):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("name", ["Relu", "relu", "RELU"])
def test_an_activation_is_named_in_any_case(name: Any) -> None:
    policy = ActorCritic(FREE, Discrete(2), hidden=np.array([8]), activation=name)  # type: ignore[arg-type]
    assert isinstance(policy.actor[1], torch.nn.ReLU)
    assert (policy.hidden, policy.activation) == ((8,), "Relu")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"activation": "gelu"}, "activation: expected one of Tanh, Relu, got 'gelu'"),
        ({"activation": None}, "activation: expected one of Tanh, Relu, got None"),
        ({"hidden": 64}, r"hidden: expected a list of widths such as \[64, 64\], got 64"),
        ({"hidden": [64.0]}, r"hidden: expected an int, got 64\.0"),
        ({"hidden": [0]}, "hidden: must be at least 1, got 0"),
    ],
)
def test_a_wrong_layer_is_named(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(JobInvalid, match=f"^{message}$"):
        ActorCritic(FREE, Discrete(2), **keywords)


def test_a_random_policy_takes_a_space() -> None:
    with pytest.raises(EnvironmentInvalid, match=r"policy random: action space 5 is not a gymnasium\.Space"):
        RandomPolicy(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("space", [Discrete(3, start=4), TORQUES])
def test_random_policy_is_seeded_by_torch_and_stays_in_the_space(space: Box | Discrete) -> None:
    runs: list[Tensor] = []
    for _ in range(2):
        torch.manual_seed(1)
        policy = RandomPolicy(space)
        runs.append(torch.cat([policy(torch.zeros(50, 3)) for _ in range(3)]))
    assert torch.equal(*runs)
    assert all(action in space for action in runs[0].numpy())
    assert len(runs[0].unique(dim=0)) > 2
    assert not hasattr(RandomPolicy(space), "parameters")


def test_each_kind_of_policy_is_built() -> None:
    mlp = make_policy(PolicySpec(mlp=MlpSpec(hidden=[7])), SEEN, Discrete(2))
    assert isinstance(mlp, ActorCritic)
    assert sum(parameter.numel() for parameter in mlp.parameters()) == (3 * 7 + 7) * 2 + (7 * 2 + 2) + (7 + 1)
    assert isinstance(make_policy(PolicySpec(random=RandomSpec()), SEEN, Discrete(2)), RandomPolicy)
    linear = make_policy(PolicySpec(entrypoint=f"{__name__}:make", kwargs={"width": 5}), SEEN, FREE)
    assert isinstance(linear, nn.Linear)
    assert linear.in_features == 5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"entrypoint": "no_such_module:make"}, "'no_such_module:make': module .* was not found"),
        ({"entrypoint": f"{__name__}:make", "kwargs": {"wide": 3}}, r"TypeError.*called as make\(observation_space"),
        ({"entrypoint": f"{__name__}:make_nothing"}, "returned a NoneType; return an nn.Module"),
    ],
)
def test_an_invalid_policy_is_refused(spec: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyInvalid, match=message):
        make_policy(PolicySpec.model_validate(spec), SEEN, FREE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_device_is_reported() -> None:
    with pytest.raises(PolicyInvalid, match=r"cannot be moved to device 'cuda'.*write device: cpu"):
        make_policy(PolicySpec(mlp=MlpSpec(), device="cuda"), SEEN, FREE)


@pytest.mark.parametrize(
    ("observations", "actions", "error", "message"),
    [
        (gymnasium.spaces.Text(3), FREE, EnvironmentInvalid, "policy mlp: observation space Text.* not supported; Box"),
        (SEEN, gymnasium.spaces.Dict(a=FREE), PolicyInvalid, r"cannot act in Dict.*several parts; flatten it"),
        (SEEN, Box(np.array([0, -1]), np.array([0, 1]), dtype=np.float32), PolicyInvalid, "`low` equals `high`"),
        (SEEN, Box(0, np.inf, (1,)), PolicyInvalid, r"bounds on both sides.*RescaleAction"),
        (SEEN, Box(0, 3, (2,), np.int64), PolicyInvalid, "integers; use Discrete"),
    ],
)
def test_an_unsupported_space_is_refused_with_advice(
    observations: Any, actions: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_policy(PolicySpec(mlp=MlpSpec()), observations, actions)


@pytest.mark.parametrize(
    ("space", "sizes", "start"),
    [
        (Discrete(3, start=-1), [3], [-1]),
        (MultiDiscrete([3, 2, 4]), [3, 2, 4], [0, 0, 0]),
        (MultiDiscrete(np.array([[2, 5], [3, 3]]), start=np.array([[1, 0], [-2, 7]])), [2, 5, 3, 3], [1, 0, -2, 7]),
        (MultiBinary(4), [2, 2, 2, 2], [0, 0, 0, 0]),
    ],
)
def test_choices_are_sampled_with_their_probabilities(space: Any, sizes: list[int], start: list[int]) -> None:
    policy = spread(ActorCritic(SEEN, space))
    observation = torch.randn(1, 3).expand(20_000, 3)
    with torch.inference_mode():
        out = policy(observation)
        logits = policy.actor(observation[0])
    choices = out["action"].reshape(20_000, -1) - torch.tensor(start)
    assert out["action"].shape[1:] == space.shape
    assert all(np.asarray(action) in space for action in out["action"][:100].numpy())
    each = [Categorical(logits=part) for part in logits.split(sizes)]
    for column, one in zip(choices.unbind(-1), each, strict=True):
        torch.testing.assert_close(
            torch.bincount(column, minlength=len(one.probs)) / 20_000, one.probs, atol=0.02, rtol=0
        )
    expected = sum(one.log_prob(column) for column, one in zip(choices.unbind(-1), each, strict=True))
    torch.testing.assert_close(out["action_log_prob"], expected)
    log_prob, entropy, _ = policy.evaluate(
        observation.reshape(200, 100, 3), out["action"].reshape(200, 100, *space.shape)
    )
    torch.testing.assert_close(log_prob.reshape(-1), out["action_log_prob"])
    torch.testing.assert_close(entropy[0, 0], torch.stack([one.entropy() for one in each]).sum())
    (log_prob.sum() + entropy.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.actor.parameters())
    with exploring(Exploration.MODE):
        assert torch.equal(
            policy(observation[:1])["action"].reshape(-1) - torch.tensor(start),
            torch.stack([one.logits.argmax() for one in each]),
        )


@pytest.mark.parametrize(
    "space", [Discrete(3, start=1), Discrete(3, start=-4), MultiDiscrete([3, 2], start=[1, 0])], ids=str
)
def test_padding_has_a_value_also_if_0_is_no_observation(space: Any) -> None:
    padding = torch.zeros(2, 5, *space.shape, dtype=torch.int64)
    assert ActorCritic(space, Discrete(2)).value(padding).shape == (2, 5, 1)


def test_a_dict_of_observations_is_flattened_and_concatenated() -> None:
    space = gymnasium.spaces.Dict(
        {
            "image": Box(0, 255, (2, 2), np.uint8),
            "rest": gymnasium.spaces.Tuple((Discrete(3, start=1), MultiBinary(2))),
            "two": MultiDiscrete([2, 3]),
        }
    )
    policy = ActorCritic(space, Discrete(2))
    seen: dict[str, Any] = {
        "image": torch.tensor([[[255, 0], [51, 0]]]).byte(),
        "rest": (torch.tensor([3]), torch.tensor([[1, 0]]).to(torch.int8)),
        "two": torch.tensor([[1, 0]]),
    }
    expected = [1, 0, 0.2, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    torch.testing.assert_close(ObservationEncoder(space)(seen, 1), torch.tensor([expected]).float())
    out = policy(seen)
    batch = TensorDict(
        {**seen, "rest": {"0": seen["rest"][0], "1": seen["rest"][1]}, "more": torch.zeros(1)}, batch_size=[1]
    ).expand(4, 1)
    torch.testing.assert_close(
        policy.evaluate(batch, out["action"].expand(4, 1))[2], out["state_value"].expand(4, 1, 1)
    )

"""A policy on plain tensors, beside the same policy on TensorDicts."""

from typing import Any

import torch
from tensordict import TensorDict, is_leaf_nontensor
from tests.sdk.plain_tensors.policies import ACTED, SEEN
from tests.sdk.same_values import assert_same
from torch import nn

from rollfleet.data.tensor_tree import key_of, nested
from rollfleet.plain_tensors.known import Untranslated
from rollfleet.plain_tensors.policy import PlainPolicy


def translated(policy: Any) -> PlainPolicy | Untranslated:
    plain = PlainPolicy(policy)
    return plain.refresh() or plain


def flat(tensordict: Any) -> dict[Any, Any]:
    return {key_of(name): value for name, value in tensordict.items(True, True, is_leaf=is_leaf_nontensor)}


def first(sizes: torch.Size, seed: int) -> dict[Any, Any]:
    draws = torch.Generator().manual_seed(seed)
    return {
        ("observation",): torch.randn(*sizes, SEEN, generator=draws),
        ("is_init",): torch.rand(*sizes, 1, generator=draws) < 0.5,
        ("next", "mask"): torch.rand(*sizes, ACTED, generator=draws) < 0.5,
        ("mask",): torch.ones(*sizes, ACTED, dtype=torch.bool),
    }


def state_of(policy: Any) -> dict[str, Any]:
    parts = policy.modules() if isinstance(policy, nn.Module) else ()
    generators: list[Any] = [getattr(each, "_generator", None) for each in parts]
    own = [each.get_state() for each in generators if each is not None]
    state = policy.state_dict() if isinstance(policy, nn.Module) else {}
    return (
        dict(state) | {f"generator {index}": each for index, each in enumerate(own)} | {"torch": torch.get_rng_state()}
    )


def steps_of(act: Any, policy: Any, sizes: torch.Size, seed: int) -> tuple[list[dict[Any, Any]], dict[str, Any]]:
    """Return the values after each of three steps, and the state then."""
    torch.manual_seed(seed)
    steps: list[dict[Any, Any]] = []
    for step in range(3):
        carried = {key[1:]: value for key, value in steps[-1].items() if key[0] == "next"} if steps else {}
        values = (steps[-1] if steps else {}) | carried | first(sizes, seed + step)
        steps.append(act(values))
    return steps, state_of(policy)


def assert_alike(plain: PlainPolicy, policy: Any, like: Any, sizes: torch.Size, seed: int = 0) -> None:
    """Assert that a translated policy does what a copy of it does to TensorDicts."""

    def acted(values: dict[Any, Any]) -> dict[Any, Any]:
        values = dict(values)
        plain(values)
        return values

    def called(values: dict[Any, Any]) -> dict[Any, Any]:
        tensordict = TensorDict(nested(values), batch_size=sizes)
        like(tensordict)
        return flat(tensordict)

    with torch.no_grad():
        assert str(plain.refresh(sizes)) in ("None", "all its modules are called themselves")
        (theirs, their_state), (ours, our_state) = (
            steps_of(called, like, sizes, seed),
            steps_of(acted, policy, sizes, seed),
        )
    assert_same(ours, theirs)
    assert_same(our_state, their_state)

"""Folding: each image of a stack travels once, and what comes out is what went in, bit by bit."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.allocations import allocates_at_most
from tests.sdk.rollouts import Observing, rollout_of
from tests.sdk.wire.tensors import bits
from torch import Tensor

from rollfleet.data.batch import Fragment, Key
from rollfleet.envs.factory import make_env
from rollfleet.errors import MessageCorrupt
from rollfleet.wire.codec import encode
from rollfleet.wire.fragment_message import pack_fragment, unpack_fragment
from rollfleet.wire.frame_stacks import Folded, fold, unfold
from rollfleet_api.job import EnvSpec
from rollfleet_api.messages import pack
from rollfleet_api.transfers import BatchMeta

META = BatchMeta(session=1, round=1, version=1, frames=6)


def stacked(
    *, count: int, last: bool, begins: set[tuple[int, int]], dtype: torch.dtype = torch.uint8, time: int = 12
) -> Tensor:
    """Observations [2, T, ...] of `count` images each, which begin with new images in the given frames."""
    generator = torch.Generator().manual_seed(0)

    def image() -> Tensor:
        return torch.randint(0, 250, (16, 20), generator=generator).to(dtype)

    rows = []
    for row in range(2):
        images = [image() for _ in range(count)]
        frames = []
        for t in range(time):
            if t:
                images = [image() for _ in range(count)] if (row, t) in begins else [*images[1:], image()]
            frames.append(torch.stack(images, -1 if last else 0))
        rows.append(torch.stack(frames))
    return torch.stack(rows)


@given(
    count=st.integers(2, 9),
    last=st.booleans(),
    begins=st.sets(st.tuples(st.integers(0, 1), st.integers(1, 11)), max_size=2),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.bfloat16, torch.float64]),
)
def test_unfolded_stacks_equal_the_originals_and_each_image_is_sent_once(
    count: int, last: bool, begins: set[tuple[int, int]], dtype: torch.dtype
) -> None:
    observations = stacked(count=count, last=last, begins=begins, dtype=dtype)
    folded = fold(observations)
    frames, images = 24, 24 + (count - 1) * (2 + len(begins))
    if 2 * images >= frames * count:
        assert folded is None
        return
    assert folded is not None
    assert folded.images.shape == (images, 16, 20)
    assert {(row, t) for row, t in folded.begins.nonzero().tolist()} == {(0, 0), (1, 0)} | begins
    assert unfold(folded).dtype is dtype
    assert unfold(folded).shape == observations.shape
    assert bits(unfold(folded)) == bits(observations)


@pytest.mark.parametrize("last", [False, True])
def test_equal_numbers_with_different_bits_are_different_images(last: bool) -> None:
    observations = stacked(count=4, last=last, begins=set(), dtype=torch.float32)
    one = (0, 5, ..., 1) if last else (0, 5, 1)
    observations[one] = 0.0
    before = (0, 4, ..., 2) if last else (0, 4, 2)
    observations[before] = -0.0
    folded = fold(observations)
    assert folded is not None
    assert folded.begins[0, 5]
    assert bits(unfold(folded)) == bits(observations)


@pytest.mark.parametrize(
    "observations",
    [
        torch.randint(0, 255, (2, 12, 4, 16, 20), dtype=torch.uint8),
        torch.randint(0, 255, (2, 12, 16, 20, 3), dtype=torch.uint8),
        torch.zeros(2, 12, 4),
        torch.zeros(2, 12, 4, 5, dtype=torch.uint8),
        stacked(count=4, last=False, begins=set(), time=1),
        stacked(count=4, last=False, begins={(row, t) for row in range(2) for t in range(2, 12)}),
        torch.zeros(2, 12, 4, 16, 20, dtype=torch.complex128),
    ],
    ids=["noise", "colours", "vectors", "tiny", "one frame", "always another", "wide"],
)
def test_observations_that_are_no_stacks_are_not_folded(observations: Tensor) -> None:
    assert fold(observations) is None


class Filmed(Observing):
    """An image of noise each step; episodes of seven."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 24), np.uint8)
    length = 7


def in_front() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.FrameStackObservation(Filmed(), 4)


def behind() -> gymnasium.Env[Any, Any]:
    shape = (12, 24, 4)
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    return gymnasium.wrappers.TransformObservation(in_front(), lambda seen: np.moveaxis(seen, 0, -1), space)


@pytest.mark.parametrize("factory", [in_front, behind])
def test_stacks_are_sent_in_less_than_half_and_arrive_whole(factory: Callable[[], gymnasium.Env[Any, Any]]) -> None:
    rollout = rollout_of(make_env(EnvSpec(entrypoint="unused:unused", num_envs=2), factory), steps=40)
    sent = rollout.collect(version=1)
    folded, plain = pack_fragment(sent, META), pack_fragment(sent, META, folded=False)
    assert folded.nbytes < 0.5 * plain.nbytes
    _, received = unpack_fragment(bytearray(b"".join(folded.parts)))
    assert same(received, sent)
    assert same(unpack_fragment(bytearray(b"".join(plain.parts)))[1], sent)
    rollout.close()


def same(one: Fragment, other: Fragment) -> bool:
    return all(
        theirs.keys() == ours.keys() and all(bits(theirs[key]) == bits(ours[key]) for key in ours)
        for theirs, ours in ((one.steps, other.steps), (one.final, other.final))
    )


FOLDED = fold(stacked(count=4, last=False, begins=set()))
assert FOLDED is not None


@pytest.mark.parametrize(
    "forged",
    [
        FOLDED._replace(images=FOLDED.images[:-1]),
        FOLDED._replace(images=FOLDED.images[:, 0, 0]),
        FOLDED._replace(begins=FOLDED.begins.clone().zero_()),
        FOLDED._replace(begins=FOLDED.begins.clone().fill_(True)),
        FOLDED._replace(begins=FOLDED.begins.to(torch.uint8)),
        FOLDED._replace(begins=FOLDED.begins[0]),
        FOLDED._replace(begins=FOLDED.begins[:0]),
        FOLDED._replace(form=torch.tensor([1 << 40, 0])),
        FOLDED._replace(form=torch.tensor([1, 0])),
        FOLDED._replace(form=torch.tensor([4, 2])),
        FOLDED._replace(form=torch.tensor([4])),
        FOLDED._replace(form=torch.tensor([4.0, 0.0])),
        FOLDED._replace(images=torch.zeros(FOLDED.images.shape, dtype=torch.complex128)),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(forged: Folded) -> None:
    with pytest.raises(MessageCorrupt, match="folded observations"), allocates_at_most(1 << 20):
        unfold(forged)


@pytest.mark.parametrize("missing", ["folded images", "folded begins", "folded form"])
def test_a_message_that_lacks_a_part_of_folded_observations_is_refused(missing: str) -> None:
    assert FOLDED is not None
    parts = {"folded images": FOLDED.images, "folded begins": FOLDED.begins, "folded form": FOLDED.form}
    tensors: dict[Key, Tensor] = {(part, "observation"): value for part, value in parts.items() if part != missing}
    with pytest.raises(MessageCorrupt, match="parts of folded observations are missing"):
        unpack_fragment(message(tensors))


def test_a_message_with_folded_and_unfolded_observations_of_one_key_is_refused() -> None:
    assert FOLDED is not None
    tensors: dict[Key, Tensor] = {(f"folded {name}", "observation"): value for name, value in FOLDED._asdict().items()}
    with pytest.raises(MessageCorrupt, match="a key occurs twice"):
        unpack_fragment(message({**tensors, ("steps", "observation"): torch.zeros(2, 12)}))


def message(tensors: dict[Key, Tensor]) -> bytearray:
    episodes: dict[Key, Tensor] = {
        ("episodes", "returns"): torch.zeros(0, dtype=torch.float64),
        ("episodes", "lengths"): torch.zeros(0, dtype=torch.int64),
        ("episodes", "versions"): torch.zeros(0, 2, dtype=torch.int64),
    }
    return bytearray(b"".join(encode(pack(META), {**tensors, **episodes}).parts))

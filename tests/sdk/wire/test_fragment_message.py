"""A fragment as one message."""

from dataclasses import replace

import pytest
import torch
from tests.sdk.allocations import allocates_at_most
from tests.sdk.nats.numbered_batches import META, fragment
from tests.sdk.wire.joined_chunks import joined

from rollfleet.data.batch import TRAJECTORY, Episodes, Fragment, Key
from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire import fragment_message
from rollfleet.wire.fragment_message import MOST_TIMES, pack_fragment, unpack_fragment
from rollfleet_api.job import Compression

KNOWN = fragment().episodes
SEEN: Key = ("observation",)


@pytest.mark.parametrize(
    "episodes",
    [
        {},
        {"returns": KNOWN["returns"]},
        KNOWN | {"unknown": torch.zeros(0)},
        KNOWN | {"info." + 101 * "x": torch.zeros(0)},
    ],
)
def test_a_message_without_the_numbers_of_episodes_or_with_others_is_corrupt(episodes: Episodes) -> None:
    encoded = pack_fragment(replace(fragment(), episodes=episodes), META)
    with pytest.raises(MessageCorrupt, match="no batch"):  # a recorder stores what it could unpack
        unpack_fragment(bytearray(b"".join(encoded.parts)))


def black(*, stacked: bool, frames: int = 256) -> Fragment:
    """A fragment of black images, 4 MiB without stacks."""
    known, shape = fragment(envs=1, steps=frames), (8, 64, 64) if stacked else (128, 128)
    seen = torch.zeros(1, frames, *shape, dtype=torch.uint8)
    return replace(known, steps=known.steps | {SEEN: seen}, final={SEEN: seen[:, 0]})


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_few_bytes_never_become_many(compression: Compression, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender without the bound is a hostile one; an honest one keeps it, and what it sent comes back."""
    sent = black(stacked=stacked)
    honest = joined(pack_fragment(sent, META, compression=compression))
    assert torch.equal(unpack_fragment(honest)[1].steps[SEEN], sent.steps[SEEN])
    with monkeypatch.context() as forging:
        forging.setattr(fragment_message, "MOST_TIMES", 1 << 30)
        forged = joined(pack_fragment(sent, META, compression=compression))
    if compression is Compression.ZSTD or stacked:
        with pytest.raises(MessageTooLarge), allocates_at_most(MOST_TIMES * len(forged)):
            unpack_fragment(forged)


def test_a_fragment_larger_than_the_jobs_is_refused_before_it_takes_memory() -> None:
    message = joined(pack_fragment(black(stacked=False), META, compression=Compression.LZ4))
    for most in ((0, 0), (1, 256)):
        assert unpack_fragment(message[:], most=most)[1].steps[TRAJECTORY].shape == (1, 256)
    with pytest.raises(MessageCorrupt, match=r"\[1, 256\]; the job's have \[1, 255\]"), allocates_at_most(1 << 18):
        unpack_fragment(message, most=(1, 255))

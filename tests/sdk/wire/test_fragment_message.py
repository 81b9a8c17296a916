"""A fragment as one message."""

from dataclasses import replace

import pytest
import torch
from tests.sdk.nats.numbered_batches import META, fragment

from rollfleet.data.batch import Episodes
from rollfleet.errors import MessageCorrupt
from rollfleet.wire.fragment_message import pack_fragment, unpack_fragment

KNOWN = fragment().episodes


@pytest.mark.parametrize("episodes", [{}, {"returns": KNOWN["returns"]}, KNOWN | {"unknown": torch.zeros(0)}])
def test_a_message_without_the_numbers_of_episodes_or_with_others_is_corrupt(episodes: Episodes) -> None:
    encoded = pack_fragment(replace(fragment(), episodes=episodes), META)
    with pytest.raises(MessageCorrupt, match="no batch"):  # a recorder stores what it could unpack
        unpack_fragment(bytearray(b"".join(encoded.parts)))

"""The fuzzer's corpus, and changes of it: decoders raise Rollfleet's errors only."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.decoders import MESSAGES, one, write_seeds
from tests.sdk.wire.dtypes import DTYPES

from rollfleet.data.batch import IS_INIT, MASK, REWARD, STEP_COUNT, TERMINATED, TRAJECTORY, TRUNCATED, VERSION, to_batch
from rollfleet.wire.codec import Key, decode, encode
from rollfleet.wire.fragment_message import unpack_fragment

CORPUS = Path(__file__).parent / "corpus"
DECODERS = {*MESSAGES, b"0", b"1", b"2", b"3", b"j"}

kept = st.sampled_from(sorted(CORPUS.iterdir())).map(Path.read_bytes)
offsets, bytes_, more = st.integers(0, 1 << 12), st.binary(max_size=9), st.sampled_from([0, 0, 0, 1, 5])
changes = st.lists(st.tuples(offsets, bytes_, more), max_size=6)
OF_STEPS = [("observation",), ("action",), ("other",), REWARD, TERMINATED, TRUNCATED, TRAJECTORY, VERSION, MASK]
PARTS = [
    *(("steps", *key) for key in [*OF_STEPS, STEP_COUNT, IS_INIT]),
    *((part, "observation") for part in ("final", "folded images", "folded begins", "folded form")),
    *(("episodes", name) for name in ("returns", "lengths", "versions")),
]
OBSERVED = {(part, "observation") for part in ("steps", "final", "folded images")}
shapes = st.sampled_from([(1, 2), (1, 2, 1), (1, 1), (1, 2, 3, 2), (3, 3)]) | st.lists(st.integers(0, 3), max_size=4)
tensors = st.dictionaries(
    st.sampled_from(PARTS),
    st.builds(lambda shape, dtype: torch.ones(shape, dtype=dtype), shapes, st.sampled_from(DTYPES)),
    max_size=4,
)


def test_the_corpus_has_something_for_each_decoder(tmp_path: Path) -> None:
    assert {file.read_bytes()[:1] for file in CORPUS.iterdir()} >= DECODERS
    write_seeds(tmp_path)
    assert {file.read_bytes()[:1] for file in tmp_path.iterdir()} == DECODERS


@pytest.mark.parametrize("name", ["fragment", "stacks", "stacks_last"])
def test_the_seeds_are_valid_batches(name: str) -> None:
    message = bytearray((CORPUS / name).read_bytes()[1:])
    assert to_batch(unpack_fragment(message)[1]).shape == (1, 2)


def test_the_corpus_ends_in_rollfleets_errors() -> None:
    for file in sorted(CORPUS.iterdir()):
        try:
            one(file.read_bytes())
        except Exception as error:
            pytest.fail(f"{file.name}: {error!r}")


@given(kept, changes)
@settings(deadline=None, max_examples=500, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_changed_inputs_of_the_corpus_end_in_rollfleets_errors(
    data: bytes, changes: list[tuple[int, bytes, int]]
) -> None:
    changed = bytearray(data)
    for offset, instead, more in changes:
        at = 1 + offset % len(changed)
        changed[at : at + len(instead) + more] = instead
    one(bytes(changed))


@given(st.sampled_from(["fragment", "stacks", "stacks_last"]), st.sampled_from(DTYPES), tensors, st.booleans())
@settings(deadline=None, max_examples=500, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_batch_of_arbitrary_tensors_ends_in_rollfleets_errors(
    name: str, dtype: torch.dtype, instead: dict[Key, torch.Tensor], leave: bool
) -> None:
    meta, tensors = decode(bytearray((CORPUS / name).read_bytes()[1:]))
    tensors |= {key: tensors[key].to(dtype) for key in OBSERVED & tensors.keys()}
    sent = {key: tensors[key] for key in tensors.keys() - instead.keys()} if leave else dict(tensors) | instead
    one(b"1" + b"".join(encode(meta, sent).parts))

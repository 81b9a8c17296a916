"""Copies of tensors equal torch's own, in every dtype and form."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rollfleet.data.tensor_memory import LARGE_BYTES, as_arrays, copy_all

LARGE, SMALL = LARGE_BYTES, 5


def numbers(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-100, 100, (size,), generator=generator).to(dtype)


@pytest.mark.parametrize("size", [0, 1, SMALL, LARGE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_values_of_every_dtype_are_copied(size: int, dtype: torch.dtype) -> None:
    source = numbers(size, dtype)
    target = torch.zeros_like(source)
    copy_all([target], [source])
    assert torch.equal(target, source)


def test_only_the_target_part_of_a_buffer_is_written() -> None:
    buffer = torch.zeros(LARGE + 32, dtype=torch.uint8)
    source = numbers(LARGE // 4)
    copy_all([buffer[16 : 16 + LARGE].view(torch.float32)], [source])
    assert torch.equal(buffer[16 : 16 + LARGE].view(torch.float32), source)
    assert not buffer[:16].any()
    assert not buffer[16 + LARGE :].any()


FORMS: dict[str, tuple[Tensor, Tensor]] = {
    "from rows": (torch.zeros(2, LARGE), numbers(2 * LARGE).view(LARGE, 2).t()),
    "to rows": (torch.zeros(LARGE, 2).t(), numbers(2 * LARGE).view(2, LARGE)),
    "every other": (torch.zeros(LARGE), numbers(2 * LARGE)[::2]),
    "parts of rows": (torch.zeros(4, LARGE + 5)[:, :-5], numbers(4 * (LARGE + 3)).view(4, -1)[:, 3:]),
    "narrowed": (torch.zeros(LARGE, dtype=torch.bfloat16), numbers(LARGE)),
    "from double": (torch.zeros(LARGE), numbers(LARGE, torch.float64)),
    "conjugate": (torch.zeros(LARGE, dtype=torch.complex64), (numbers(LARGE) * (1 + 1j)).conj()),
    "negated": (torch.zeros(LARGE), (numbers(LARGE) * (1 + 1j)).conj().imag),  # a lazy negation
    "from a parameter": (torch.zeros(LARGE), nn.Parameter(numbers(LARGE))),
    "to a parameter": (nn.Parameter(torch.zeros(LARGE)), numbers(LARGE)),
}


@pytest.mark.parametrize(("target", "source"), FORMS.values(), ids=FORMS)
def test_values_are_copied_in_every_form(target: Tensor, source: Tensor) -> None:
    expected = target.detach().clone().copy_(source.detach())
    copy_all([numbers(3), target], [numbers(3), source])
    assert torch.equal(target.detach(), expected)
    assert expected.any()


def test_many_tensors_of_all_sizes_are_copied() -> None:
    sources = [numbers(size) for size in (1, LARGE, 7, 2 * LARGE, 0)]
    targets = [torch.zeros_like(source) for source in sources]
    copy_all(targets, sources)
    assert all(map(torch.equal, targets, sources))
    copy_all([], [])


def test_a_tensor_copied_onto_itself_is_unchanged() -> None:
    source = numbers(LARGE)
    memory = source.numpy()
    before = memory.copy()
    copy_all([source], [torch.from_numpy(memory)])
    assert np.array_equal(memory, before)


def test_tensors_that_numpy_refuses_are_arrays_beside_usual_ones() -> None:
    tensors = [torch.ones(2), torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16)]
    assert [str(array.dtype) for array in as_arrays(tensors)] == ["float32", "float32", "int16"]

"""Memory that Python allocates."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def allocates_at_most(nbytes: int) -> Iterator[None]:
    """Check that the block allocates so many bytes at once, and no more."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= nbytes

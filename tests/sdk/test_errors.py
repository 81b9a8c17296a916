"""Errors of the background, which are copied to be raised."""

import pytest

from rollfleet.errors import WorkerFailed, copied


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (FileNotFoundError(2, "No such file or directory", "model.pt"), "filename"),
        (SystemExit(3), "code"),
        (WorkerFailed(1, "no"), "worker"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_has_what_its_error_does_not_keep_in_its_args(error: BaseException, name: str) -> None:
    copy = copied(error)
    assert copy is not error
    assert (type(copy), str(copy)) == (type(error), str(error))
    assert getattr(copy, name) == getattr(error, name)

"""What a user was told of: errors that stay, and that the end of a collector need not raise again."""

from types import TracebackType
from weakref import WeakSet

from rollfleet.errors import RollfleetError


class RaisedErrors:
    """A context around what a user calls: it lets errors pass, and knows them again."""

    def __init__(self) -> None:
        self._errors: WeakSet[RollfleetError] = WeakSet()  # they hold the calls that they came out of, and so us

    def of(self, error: RollfleetError) -> bool:
        """Whether this very error came out of a call before."""
        return error in self._errors

    def __enter__(self) -> None:
        """A call begins."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """It ends."""
        if isinstance(error, RollfleetError):
            self._errors.add(error)

"""A job's page as bytes: what NATS keeps of it for the next operator, and what stays of a deleted job."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from pydantic import Field, ValidationError

from rollfleet_operator.nats_port import PAGE_BYTES
from rollfleet_ui.history import MAX_BYTES, HistoryInvalid, JobHistory
from rollfleet_ui.model import JobPage, WorkerRow
from rollfleet_ui.views import View

_FORMAT: Final = 1
_LENGTH: Final = 4  # bytes of the length of the first part
_MAX_UNPACKED_BYTES: Final = 8 << 20


class PageInvalid(ValueError):
    """Bytes that are no page, or one of a later format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPage:
    """All that the page shows of a job, except logs.

    Attributes:
        page: The job.
        workers: Its workers, and its learner.
        history: What happened to it.

    Example:
        >>> SavedPage.from_bytes(saved.to_bytes()).page.row.key
        'default/cartpole'
    """

    page: JobPage
    workers: list[WorkerRow]
    history: JobHistory

    def to_bytes(self) -> bytes:
        """Return it compressed, at most `PAGE_BYTES`: a job that is too large loses its workers, then its spec."""
        for head in self._heads():
            packed = zlib.compress(head.model_dump_json(by_alias=True).encode(errors="replace"))
            if _LENGTH + len(packed) + MAX_BYTES <= PAGE_BYTES:
                break
        return len(packed).to_bytes(_LENGTH) + packed + self.history.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` of this version or an earlier one returned.

        Raises:
            PageInvalid: It is something else.
        """
        end = _LENGTH + int.from_bytes(data[:_LENGTH])
        try:
            text = zlib.decompressobj().decompress(data[_LENGTH:end], _MAX_UNPACKED_BYTES)  # else it is cut: no JSON
            head = _Head.model_validate_json(text, by_alias=True)
            return cls(page=head.page, workers=head.workers, history=JobHistory.from_bytes(data[end:]))
        except (zlib.error, ValidationError, HistoryInvalid) as error:
            raise PageInvalid(f"not a saved page: {error}") from None

    def _heads(self) -> "Iterator[_Head]":
        yield _Head(format=_FORMAT, page=self.page, workers=self.workers)
        yield _Head(format=_FORMAT, page=self.page)
        yield _Head(format=_FORMAT, page=self.page.model_copy(update={"spec": "", "defaulted": []}))


class _Head(View):
    """The JSON of a saved page; its history follows."""

    format: int = Field(ge=1, le=_FORMAT)
    page: JobPage
    workers: list[WorkerRow] = Field(default=[])

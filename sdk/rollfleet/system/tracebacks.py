"""Errors of users' code as text: their own frames come first, not those that lead to them."""

import logging
import re
import traceback
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_LIBRARIES: Final = r'[^"]*/(?:contextlib\.py|site-packages/(?:gymnasium|tensordict|torch|torchrl)/)'
_FRAME: Final = rf'  File "(?:{re.escape(str(Path(__file__).parents[1]))}|{_LIBRARIES})[^"]*", .*\n(?:    .*\n)*'
_LEADING: Final = re.compile(rf"(?<=\(most recent call last\):\n)(?:{_FRAME})+")


def formatted(error: BaseException) -> str:
    """Return an error with its causes. Each traceback begins at the first frame outside of Rollfleet and its libraries.

    One without such a frame is whole, unless Rollfleet raised the error on purpose. The log at level debug has all.
    """
    log.debug("the whole traceback", exc_info=error)
    return _LEADING.sub(_unless_all, "".join(traceback.format_exception(error)))


def _unless_all(leading: re.Match[str]) -> str:
    goes_on = leading.string.startswith(("  File ", "rollfleet.errors."), leading.end())
    return "" if goes_on else leading.group()

"""A JSON decoder that survives any nesting.

The API server stores values that are nested 10,000 levels deep, and one such job would end each list and each watch of
all jobs with a RecursionError. What is nested too deeply to be valid is cut off: validation refuses the rest.
"""

import json
import re
from typing import Any, Final

DEEPEST: Final = 100
"""The deepest nesting of what is kept; `rollfleet_api.fields.MAX_DEPTH` and the levels around a field are less."""

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{\]}]', re.DOTALL)


def loads(text: str | bytes) -> Any:
    """Decode a text; values below `DEEPEST` levels become null if it is too deep to be decoded.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(shallow(text if isinstance(text, str) else text.decode()))


def shallow(text: str) -> str:
    """Replace all that is nested more than `DEEPEST` levels deep in JSON by null."""
    kept, depth, copied = list[str](), 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "{" | "[":
                depth += 1
                if depth == DEEPEST + 1:
                    kept += [text[copied : token.start()], "null"]
            case "}" | "]":
                depth -= 1
                if depth == DEEPEST:
                    copied = token.end()
    return "".join([*kept, text[copied:]])

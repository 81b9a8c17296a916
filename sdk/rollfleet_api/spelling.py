"""The spelling of a job's fields and values in messages: YAML's, and the seam for that of another caller."""

import json
from collections.abc import Mapping
from string import Formatter
from typing import Final

from rollfleet_api.text import clipped


class Spelling:
    """The spelling of fields and values in messages: YAML's. A subclass has another one."""

    def path(self, path: str) -> str:
        """Return how the caller names the field at a path: `spec.collect.framesPerBatch`."""
        return path

    def value(self, value: object) -> str:
        """Return a wrong value as the caller wrote it."""
        if isinstance(value, list | tuple | Mapping):
            return "a mapping" if isinstance(value, Mapping) else "a list"
        scalar = value is None or isinstance(value, bool | int | float | str)
        return clipped(json.dumps(value, ensure_ascii=False)) if scalar else f"a {type(value).__name__}"

    def pair(self, name: str, value: object) -> str:
        """Return how the caller gives a value to a field."""
        return f"`{name}: {value}`"

    def choice(self, value: str) -> str:
        """Return one of a field's choices."""
        return f"`{value}`"

    def field(self, part: str, name: str, value: str) -> str:
        """Return how the caller names a field of the part at a path, or gives it a value, unless that is empty."""
        return self.pair(name, value) if value else f"`{name}`"

    def message(self, message: str, part: str = "") -> str:
        """Return the message of a rule about the part at a path, with the names of its fields.

        Example:
            >>> YAML.message("only {vectorization:Async} uses processes; remove {processes}")
            'only `vectorization: Async` uses processes; remove `processes`'
        """
        return "".join(
            text + (self.field(part, name, value or "") if name else "")
            for text, name, value, _ in Formatter().parse(message)
        )


YAML: Final = Spelling()

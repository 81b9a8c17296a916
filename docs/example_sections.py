"""An extension for the API reference: our docstrings say `Example:`, and the parser of sections knows `Examples:`."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Makes sections of examples of them, whose code is shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section; griffe calls this hook for each object."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")

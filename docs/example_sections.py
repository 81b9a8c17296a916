"""An extension for the API reference: it shows sections of examples as code, and groups of arguments with their titles.

Our docstrings say `Example:`, and the parser of sections knows `Examples:`. Blank lines between arguments separate
groups; comments in the signature are their titles.
"""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Makes sections of examples and of groups of arguments."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring; griffe calls this hook for each object."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
            if isinstance(obj, griffe.Function):
                signature = "".join(f"{line}\n" for line in obj.lines).partition('"""')[0]
                obj.docstring.value = grouped(obj.docstring.value, re.findall(r"^ +# (.+)$", signature, re.MULTILINE))


def grouped(docstring: str, titles: list[str]) -> str:
    """Return a docstring with a section for each group of arguments but the first, which has no title."""
    before, args, after = docstring.partition("Args:\n")
    first, *groups = re.split(r"\n\n(?=    )", after) if args else [""]
    if not titles or len(groups) != len(titles):
        return docstring
    return (
        before
        + args
        + first
        + "".join(f"\n\nArgs: {title}\n{group}" for title, group in zip(titles, groups, strict=True))
    )

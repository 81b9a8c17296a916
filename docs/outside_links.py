"""A hook for the site: a link to a file that is not a page, such as a decision, becomes the name of that file."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrite the links of a page; mkdocs calls this hook."""
    folder = posixpath.dirname(page.file.src_uri)

    def written(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        inside = file.startswith("docs/") and not file.startswith(("docs/decisions/", "docs/write-a-transport.md"))
        return link[0] if inside else f"{link[1]} (`{file}`)"

    return _LINK.sub(written, markdown)

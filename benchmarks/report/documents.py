"""The output of tables and pictures."""

import re
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Save a figure as SVG. Equal figures give equal files."""
    with mpl.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})


def fill(document: Path, texts: Mapping[str, str]) -> None:
    """Replace what stands between a mark, `<!-- name -->`, and `<!-- end -->` by the text of this name.

    Raises:
        SystemExit: No text has the name of a mark.
    """

    def filled(found: re.Match[str]) -> str:
        if found[1] not in texts:
            raise SystemExit(f"{document}: no text for the mark <!-- {found[1]} -->, only for {', '.join(texts)}")
        return f"<!-- {found[1]} -->\n{texts[found[1]]}\n<!-- end -->"

    between = re.compile(r"<!-- ([^>]+) -->\n.*?<!-- end -->", re.DOTALL)
    document.write_text(between.sub(filled, document.read_text()))

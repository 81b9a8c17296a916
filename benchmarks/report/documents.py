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


def fill(document: Path, blocks: Mapping[str, str]) -> None:
    """Put each block between its marks.

    Raises:
        SystemExit: A mark is missing.
    """
    text = document.read_text()
    for name, block in blocks.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"{document} has no mark <!-- {name} --> ... <!-- end -->")
        text = pattern.sub(lambda found, block=block: f"{found[1]}{block}\n{found[2]}", text)  # type: ignore[misc]
    document.write_text(text)

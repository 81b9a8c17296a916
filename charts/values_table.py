"""Write the table of a chart's values into its README: `python charts/values_table.py charts/rollfleet`.

The description of a value is the `# --` comment above it in `values.yaml`; its default is the value there.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
_LINE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]\w*):")


def described(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the description of each described value, in order."""
    path: list[tuple[int, str]] = []
    comment = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment = stripped.removeprefix("# -- ")
        elif stripped.startswith("# ") and comment:
            comment += " " + stripped.removeprefix("# ")
        elif found := _LINE.match(line):
            indent = len(found["indent"])
            path = [(depth, key) for depth, key in path if depth < indent] + [(indent, found["key"])]
            if comment:
                yield tuple(key for _, key in path), comment
            comment = ""


def table(text: str) -> str:
    """Return the table in Markdown."""
    values = yaml.safe_load(text)
    rows = ["| Value | Default | Description |", "|---|---|---|"]
    for path, comment in described(text):
        default = values
        for key in path:
            default = default[key]
        rows.append(f"| `{'.'.join(path)}` | `{json.dumps(default)}` | {comment} |")
    return "\n".join(rows)


def written(readme: str, values: str) -> str:
    """Return a README with the table of these values."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(values)}\n{END}{tail}"


def main(folder: Path) -> None:
    """Update the README of the chart in a folder."""
    readme = folder / "README.md"
    readme.write_text(written(readme.read_text(), (folder / "values.yaml").read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The table of docs/coming-from-torchrl.md agrees with the code."""

from collections.abc import Iterable
from pathlib import Path

from rollfleet.plain_tensors import environments, heads, known, policy, transforms


def table() -> str:
    rows: dict[str, Iterable[str]] = {
        "environments, of a single one of Gymnasium": environments.TRANSLATED,
        "transforms": transforms.TRANSLATED,
        "modules": policy.TRANSLATED,
        "distributions without an object": heads.FAST,
    }
    lines = ["| part | classes |", "|---|---|"]
    for part, names in rows.items():
        notes = {name: transforms.TRANSLATED.get(name, "") for name in sorted(names)}
        classes = (f"`{name}`" + (f" ({note})" if note else "") for name, note in notes.items())
        lines.append(f"| {part} | {', '.join(classes)} |")
    return "\n".join(lines)


def test_the_table_of_translated_classes_is_current(repository: Path) -> None:
    page = (repository / "docs/coming-from-torchrl.md").read_text()
    assert table() in page
    assert all(f"{name} {' or '.join(versions)}" in page for name, versions in known.VERSIONS.items())

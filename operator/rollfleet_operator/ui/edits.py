"""What an edit of a job changed, as a moment of its timeline."""

from difflib import unified_diff
from typing import NamedTuple

import yaml

from rollfleet_ui.model import Happened


class Edit(NamedTuple):
    """An edit.

    Attributes:
        kind: Scaled, Suspended or Resumed if it changed nothing else; Edited.
        text: It in one line.
        detail: The changed lines of the spec.
    """

    kind: Happened
    text: str
    detail: str = ""


def edit(before: str, after: str) -> Edit:
    """Compare two specs.

    Args:
        before: The earlier spec, with its defaults, as YAML.
        after: The later one.

    Example:
        >>> edit("workers: 2", "workers: 4")
        Edit(kind=<Happened.SCALED: 'Scaled'>, text='scaled from 2 to 4 workers', detail='')
    """
    old, new = yaml.safe_load(before), yaml.safe_load(after)
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    if changed == ["workers"]:
        return Edit(Happened.SCALED, f"scaled from {old['workers']} to {new['workers']} workers")
    if changed == ["suspend"]:
        return Edit(Happened.SUSPENDED, "suspended") if new["suspend"] else Edit(Happened.RESUMED, "resumed")
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return Edit(Happened.EDITED, f"edited {', '.join(changed)}", "\n".join([*lines][2:]))  # without the two file names

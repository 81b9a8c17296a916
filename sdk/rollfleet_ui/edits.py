"""What an edit of a job changed, as a moment of its timeline."""

from difflib import unified_diff

import yaml

from rollfleet_ui.model import Happened


def edit(before: str, after: str) -> tuple[Happened, str, str]:
    """Compare two specs.

    Args:
        before: The earlier spec, with its defaults, as YAML.
        after: The later one.

    Returns:
        Scaled, Suspended or Resumed if nothing else changed, otherwise Edited; the edit in one line; the changed lines.

    Example:
        >>> edit("workers: 2", "workers: 4")
        (<Happened.SCALED: 'Scaled'>, 'scaled from 2 to 4 workers', '')
    """
    old, new = yaml.safe_load(before), yaml.safe_load(after)
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    if changed == ["workers"]:
        return Happened.SCALED, f"scaled from {old['workers']} to {new['workers']} workers", ""
    if changed == ["suspend"]:
        return (Happened.SUSPENDED, "suspended", "") if new["suspend"] else (Happened.RESUMED, "resumed", "")
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return Happened.EDITED, f"edited {', '.join(changed)}", "\n".join([*lines][2:])  # without the two file names

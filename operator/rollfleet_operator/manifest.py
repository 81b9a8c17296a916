"""Kubernetes objects as plain data: what they are called, and how one is laid over another."""

import hashlib
import json
from copy import deepcopy
from typing import Any, Final, NamedTuple

Manifest = dict[str, Any]
"""A Kubernetes object, as JSON has it. Built here, or parsed into `observed`; nothing else looks into one."""

_MERGED_BY: Final = ("name", "mountPath", "containerPort", "key")
"""What tells the items of a Kubernetes list apart, where the list is merged and not replaced."""

HASH_LENGTH: Final = 8


class Ref(NamedTuple):
    """Which object it is, among those of a namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.kind} {self.name}"


def ref(manifest: Manifest) -> Ref:
    """Which object a manifest describes."""
    return Ref(manifest["kind"], manifest["metadata"]["name"])


def digest(data: object) -> str:
    """A short hash of plain data, the same on every machine and in every run."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def overlay(below: Any, above: Any) -> Any:
    """What a user wrote, laid over what we would write: a new value, sharing nothing with either.

    Mappings are merged, and `null` takes a field away. Lists whose items have a name (containers, volumes, variables)
    are merged by it, ours first; all others are replaced.
    """
    if isinstance(below, dict) and isinstance(above, dict):
        kept = {key: value for key, value in below.items() if above.get(key, value) is not None}
        written = {key: value for key, value in above.items() if value is not None}
        return {key: _laid(key, kept, written) for key in (*kept, *(key for key in written if key not in kept))}
    if isinstance(below, list) and isinstance(above, list) and (key := _key(below + above)):
        kept, written = ({item[key]: item for item in items} for items in (below, above))
        return [_laid(name, kept, written) for name in (*kept, *(name for name in written if name not in kept))]
    return deepcopy(above)


def _laid(key: str, below: Manifest, above: Manifest) -> Any:
    if key not in above:
        return deepcopy(below[key])
    return overlay(below[key], above[key]) if key in below else deepcopy(above[key])


def covers(wanted: Any, found: Any) -> bool:
    """Whether what is there says all that is wanted; it may say more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and covers(value, found[key]) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return False
        key = _key(wanted + found)
        if key:
            items = {item[key]: item for item in found}
            return all(item[key] in items and covers(item, items[item[key]]) for item in wanted)
        return len(wanted) == len(found) and all(map(covers, wanted, found))
    return bool(wanted == found)


def _key(items: list[Any]) -> str | None:
    """What tells the items apart; None: they are values, or have no such field."""
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    return next((key for key in _MERGED_BY if all(key in item for item in items)), None)

"""Kubernetes objects as plain data: references, hashes, overlays."""

import hashlib
import json
from copy import deepcopy
from typing import Any, Final, NamedTuple

Manifest = dict[str, Any]
"""A Kubernetes object as JSON. It is built here or parsed into `observed`; no other module reads its fields."""

_MERGED_BY: Final = ("name", "mountPath", "containerPort", "key")
"""Fields that identify the items of a list that is merged and not replaced."""

HASH_LENGTH: Final = 8


class Ref(NamedTuple):
    """A reference to an object in a namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return the reference for messages."""
        return f"{self.kind} {self.name}"


def ref(manifest: Manifest) -> Ref:
    """Return the reference to a manifest's object."""
    return Ref(manifest["kind"], manifest["metadata"]["name"])


def digest(data: object) -> str:
    """Return a short hash of plain data, equal on all machines and in all runs."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def overlay(below: Any, above: Any) -> Any:
    """Merge a user's manifest (`above`) into the operator's (`below`); the result shares nothing with either.

    Mappings are merged, and `null` removes a field. Lists of items with a name (containers, volumes, variables) are
    merged by the name, the operator's items first; all other lists are replaced.

    Example:
        >>> overlay({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
        {'b': {'c': 2, 'd': 3}}
    """
    if isinstance(below, dict) and isinstance(above, dict):
        kept = {key: value for key, value in below.items() if above.get(key, value) is not None}
        written = {key: value for key, value in above.items() if value is not None}
        return {key: _merged(key, kept, written) for key in (*kept, *(key for key in written if key not in kept))}
    if isinstance(below, list) and isinstance(above, list) and (key := _key(below + above)):
        kept, written = ({item[key]: item for item in items} for items in (below, above))
        return [_merged(name, kept, written) for name in (*kept, *(name for name in written if name not in kept))]
    return deepcopy(above)


def _merged(key: str, below: Manifest, above: Manifest) -> Any:
    if key not in above:
        return deepcopy(below[key])
    return overlay(below[key], above[key]) if key in below else deepcopy(above[key])


def covers(wanted: Any, found: Any) -> bool:
    """Return whether `found` contains all of `wanted`; it may contain more."""
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
    """Return the field that identifies the items; None: they are values, or have no such field."""
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    return next((key for key in _MERGED_BY if all(key in item for item in items)), None)

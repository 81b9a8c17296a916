"""Kubernetes objects as plain data: references, hashes, overlays."""

import hashlib
import json
from copy import deepcopy
from typing import Any, Final, NamedTuple

from rollfleet_api.kinds import KINDS
from rollfleet_api.metadata import DIGEST_LENGTH

Manifest = dict[str, Any]
"""A Kubernetes object as JSON. It is built here or parsed into `observed`; no other module reads its fields."""

_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "claims": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
"""The lists that are merged, and the fields that identify their items: the API's `x-kubernetes-list-map-keys`, as for
server-side apply. All other lists, such as tolerations, are replaced as a whole."""

_DEFAULTS: Final = {"protocol": "TCP"}
"""Fields of `_KEYS` that have a default."""


class Ref(NamedTuple):
    """A reference to an object in a namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return the reference for messages."""
        return f"{self.kind} {self.name}"


def built(kind: str, name: str, labels: dict[str, str], **fields: Any) -> Manifest:
    """Build an object of one of `KINDS`; `fields` are those besides its metadata."""
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **fields}


def ref(manifest: Manifest) -> Ref:
    """Return the reference to a manifest's object."""
    return Ref(manifest["kind"], manifest["metadata"]["name"])


def digest(data: object) -> str:
    """Return a short hash of plain data, equal on all machines and in all runs."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def overlay(below: Any, above: Any, field: str = "") -> Any:
    """Merge a user's manifest (`above`) into the operator's (`below`); the result shares nothing with either.

    Mappings are merged, and `null` removes a field. As `kubectl apply` drops nulls, an empty `securityContext` removes
    all of it, too. Lists of the API's map type (containers, volumes, variables) are merged by their own keys, the
    operator's items first, and of equal keys the last item counts, as for variables in Kubernetes; all other lists are
    replaced.

    Example:
        >>> overlay({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
        {'b': {'c': 2, 'd': 3}}
    """
    if isinstance(below, dict) and isinstance(above, dict) and (above or field != "securityContext"):
        merged = {key: deepcopy(value) for key, value in below.items() if key not in above}
        merged |= {
            key: overlay(below[key], value, key) if key in below else deepcopy(value)
            for key, value in above.items()
            if value is not None
        }
        return {key: merged[key] for key in (*below, *above) if key in merged}
    if _is_keyed(field, below) and _is_keyed(field, above):
        theirs = {_key(field, item): item for item in above}
        items = [overlay(item, theirs.pop(_key(field, item), {})) for item in below]
        return items + deepcopy([*theirs.values()])
    return deepcopy(above)


def covers(wanted: Any, found: Any, field: str = "") -> bool:
    """Return whether `found` contains all of `wanted`, the values of `field`; it may contain more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and covers(value, found[key], key) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return False
        if _is_keyed(field, wanted) and _is_keyed(field, found):
            present = {_key(field, item): item for item in found}
            return all(covers(item, present.get(_key(field, item))) for item in wanted)
        return len(wanted) == len(found) and all(map(covers, wanted, found))
    return bool(wanted == found)


def _is_keyed(field: str, items: Any) -> bool:
    """Return whether a value is a list whose items have the keys of its field."""
    if field not in _KEYS or not isinstance(items, list):
        return False
    return all(
        isinstance(item, dict)
        and _KEYS[field][0] in item
        and not any(isinstance(item.get(key), dict | list) for key in _KEYS[field])
        for item in items
    )


def _key(field: str, item: Manifest) -> tuple[Any, ...]:
    return tuple(item.get(key, _DEFAULTS.get(key)) for key in _KEYS[field])

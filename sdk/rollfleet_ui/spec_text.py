"""The spec of a job as text, and which of its fields have their defaults."""

from collections.abc import Iterator

import yaml

from rollfleet_api.job import CollectorJobSpec


def spec_text(spec: CollectorJobSpec) -> str:
    """Return a spec with its defaults, as YAML."""
    return yaml.safe_dump(_whole(spec), sort_keys=False, allow_unicode=True, width=100)


def defaulted(spec: CollectorJobSpec) -> list[str]:
    """Return the paths whose values are the defaults, such as `weights.interval`. Those without a value have none.

    Whether a user wrote a default is not known: the API server fills it in.

    Example:
        >>> spec = CollectorJobSpec.model_validate(
        ...     {"env": {"id": "CartPole-v1"}, "policy": {"mlp": {}}, "collect": {"framesPerBatch": 64}}
        ... )
        >>> "workers" in defaulted(spec), "collect.framesPerBatch" in defaulted(spec)
        (True, False)
    """
    given = set(_paths(spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True), ""))
    return [path for path in _paths(_whole(spec), "") if path not in given]


def _whole(spec: CollectorJobSpec) -> object:
    return _without_empty(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


def _without_empty(value: object) -> object:
    """Return a value without empty mappings and lists inside: they say nothing, and some are refused as input."""
    if not isinstance(value, dict):
        return value
    kept = {name: _without_empty(below) for name, below in value.items()}
    return {name: below for name, below in kept.items() if below not in ({}, [])}


def _paths(value: object, path: str) -> Iterator[str]:
    """Yield the paths of all values except mappings."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _paths(below, f"{path}.{name}" if path else str(name))
    else:
        yield path

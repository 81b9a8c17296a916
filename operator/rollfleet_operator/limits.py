"""The most that an installation lets a job ask for, and all jobs of a namespace together."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from rollfleet_api.quantity import parse_bytes

_BYTES: Final = "maxBytes"
_FIELDS: Final = {"workers": "`workers` (or `autoscale.maxWorkers`)", "gpus": "GPUs", _BYTES: "`delivery.maxBytes`"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a job asks for.

    Attributes:
        workers: The most workers that it may have, with its evaluation workers.
        gpus: Devices of all its pods, such as `nvidia.com/gpu`.
        max_bytes: The bytes of its batches on NATS.
    """

    workers: int
    gpus: int
    max_bytes: int

    def amounts(self) -> dict[str, int]:
        """Return the amounts by their names in the chart's values."""
        return {"workers": self.workers, "gpus": self.gpus, _BYTES: self.max_bytes}


@dataclass(frozen=True, slots=True)
class Limits:
    """The most of each amount, by its name in the chart's values; a missing one has no limit."""

    most: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse limits from JSON, as the chart's values have them; empty: no limits.

        Raises:
            ValueError: The text is invalid.

        Example:
            >>> Limits.parse('{"workers": 100, "maxBytes": "4Gi"}').most
            (('workers', 100), ('maxBytes', 4294967296))
        """
        found: Any = json.loads(text or "{}")
        if not isinstance(found, dict) or not found.keys() <= _FIELDS.keys():
            raise ValueError(f"expected a mapping of {', '.join(_FIELDS)}")
        return cls(tuple((name, parse_bytes(most) if name == _BYTES else int(most)) for name, most in found.items()))

    def refusals(self, request: Request, others: Iterable[Request] = ()) -> Iterator[tuple[str, int, int, int]]:
        """Yield each amount above its limit: its name, what is asked for, what others hold, and the limit."""
        held = [other.amounts() for other in others]
        for name, most in self.most:
            asked, theirs = request.amounts()[name], sum(amounts[name] for amounts in held)
            if asked + theirs > most:
                yield name, asked, theirs, most


def refusal(
    request: Request, others: Iterable[Request], *, per_job: Limits, per_namespace: Limits, namespace: str
) -> str | None:
    """Return why a job may not have what it asks for; None: it may.

    Args:
        request: What it asks for.
        others: What the other jobs of its namespace hold.
        per_job: The limits of a job.
        per_namespace: The limits of all jobs of a namespace.
        namespace: Its namespace.
    """
    for name, asked, _, most in per_job.refusals(request):
        return (
            f"the job asks for {_shown(name, asked)} {_FIELDS[name]}, and a job may have {_shown(name, most)} here: "
            f"ask for less, or let the cluster's administrator raise the chart's `limits.perJob.{name}`"
        )
    for name, asked, theirs, most in per_namespace.refusals(request, others):
        return (
            f"the job asks for {_shown(name, asked)} {_FIELDS[name]}, and other jobs hold {_shown(name, theirs)} of "
            f"the {_shown(name, most)} of namespace {namespace}: ask for less, suspend or delete a job, or let the "
            f"cluster's administrator raise the chart's `limits.perNamespace.{name}`"
        )
    return None


def _shown(name: str, amount: int) -> str:
    return f"{amount / (1 << 20):g} MiB" if name == _BYTES else str(amount)

"""Jobs from plain data: all their errors, each with its place."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.spelling import YAML, Spelling
from rollfleet_api.wording import worded

MAX_SPEC_BYTES: Final = 1 << 16
"""The most bytes of a job's spec as JSON. The operator copies and compares it at each look; files belong elsewhere."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a job.

    Attributes:
        path: The field in YAML words, such as `spec.collect.framesPerBatch`; empty: the whole document.
        message: The error, and what to write instead.
        where: The file, and the line if known; empty: unknown.
    """

    path: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        """Return the problem as one line."""
        return ": ".join(part for part in (self.where, self.path, self.message) if part)


class JobErrors(ValueError):
    """One or several errors in a job, or in a file of jobs.

    Attributes:
        problems: All of them, in the order of the document.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Combine problems; the text has one line for each."""
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Oversized(dict[str, Any]):
    """A spec of more than `MAX_SPEC_BYTES`: empty, with its size.

    Attributes:
        nbytes: Its size as JSON.
    """

    def __init__(self, nbytes: int) -> None:
        """Keep the size."""
        super().__init__()
        self.nbytes = nbytes


def bounded(spec: Any) -> Any:
    """Return a spec, or an `Oversized` in its place, which `parse_job` refuses as it refuses the spec."""
    if isinstance(spec, Oversized):
        return spec
    try:
        nbytes = len(json.dumps(spec, separators=(",", ":")))
    except (RecursionError, TypeError, ValueError):  # not JSON: the models say what is wrong
        return spec
    return spec if nbytes <= MAX_SPEC_BYTES else Oversized(nbytes)


def parse_job(data: object, *, origin: str = "") -> CollectorJob:
    """Parse a job from plain data (of YAML or JSON).

    Args:
        data: The output of a YAML or JSON parser: mappings, lists, text, numbers. Fields have their YAML names.
        origin: The source of the data, for messages.

    Raises:
        JobErrors: With all errors.

    Example:
        >>> parse_job({"kind": "CollectorJob"})
        Traceback (most recent call last):
        rollfleet_api.validation.JobErrors: apiVersion: missing; write `apiVersion: rollfleet.dev/v1alpha1`
    """
    if found := list(_kind_problems(data)):
        raise JobErrors(replace(problem, where=origin) for problem in found)
    return checked_job(data, origin=origin)


def checked_job(data: object, spelling: Spelling = YAML, *, origin: str = "") -> CollectorJob:
    """Return a job of data that is one, of any size. Errors name fields and values in this spelling.

    Raises:
        JobErrors: With all errors.
    """
    try:
        job = CollectorJob.model_validate(data, by_alias=True, by_name=False)
        if (job.status and job.status.observed_generation) or not job.spec.uneven:
            return job
        found = [(spelling.path("spec.collect.framesPerBatch"), spelling.message(job.spec.uneven, "spec"))]
    except ValidationError as error:
        found = list(worded(error, CollectorJob, spelling))
    raise JobErrors(Problem(*each, where=origin) for each in found)


def _kind_problems(data: object) -> Iterator[Problem]:
    """Yield what shows that the data is not a job at all; errors of its fields would be noise."""
    if not isinstance(data, Mapping):
        yield Problem("", f"expected a mapping with apiVersion, kind, metadata and spec, got {YAML.value(data)}")
        return
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if field not in data:
            yield Problem(field, f"missing; write `{field}: {expected}`")
        elif data[field] != expected:
            yield Problem(field, f"expected `{expected}`, got {YAML.value(data[field])}; write `{field}: {expected}`")
    if isinstance(spec := bounded(data.get("spec")), Oversized):
        yield Problem(
            "spec",
            f"has {spec.nbytes:,} bytes as JSON, and at most {MAX_SPEC_BYTES:,} are allowed; put code and data into "
            "the ConfigMap of `source`, into the image, or into a volume",
        )

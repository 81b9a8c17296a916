"""Jobs from plain data: all their errors, each with its place."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from rollfleet_api.fields import child
from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.wording import UNKNOWN, YAML, worded

MAX_SPEC_BYTES: Final = 1 << 16
"""The most bytes of a job's spec as JSON. The operator copies and compares it at each look; files belong elsewhere."""

_PART_OF_STATUS: Final = re.compile(r"status\.\w+(\[\d+\])?")


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
    found = list(_kind_problems(data))
    if not found:
        try:
            return CollectorJob.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as error:
            found = [Problem(*each) for each in worded(error, CollectorJob)]
    raise JobErrors(replace(problem, where=origin) for problem in found)


def parse_stored_job(data: object) -> tuple[CollectorJob, tuple[str, ...]]:
    """Parse a job that the API server has accepted, perhaps with the CRD of a newer version.

    Args:
        data: The job, as the API server returns it.

    Returns:
        The job, and the paths of what this version does not know: fields, and values in the status. It is left out.

    Raises:
        JobErrors: With all other errors.

    Example:
        >>> parse_stored_job(manifest)[1]  # doctest: +SKIP
        ('spec.collect.newOption',)
    """
    try:
        return parse_job(data), ()
    except JobErrors as errors:
        unknown = [path for problem in errors.problems if (path := _left_out(problem))]
        if not unknown:
            raise
    return parse_job(without(data, unknown)), tuple(unknown)


def without(value: Any, paths: Collection[str], path: str = "") -> Any:
    """Copy a document, or the part of it at `path`, without the fields and items at some paths.

    Example:
        >>> without({"workers": {"ready": 1, "desired": 2}}, ["workers.ready"])
        {'workers': {'desired': 2}}
    """
    if isinstance(value, Mapping):
        below = ((key, item, child(path, str(key))) for key, item in value.items())
        return {key: without(item, paths, at) for key, item, at in below if at not in paths}
    if isinstance(value, list):
        items = ((item, child(path, index)) for index, item in enumerate(value))
        return [without(item, paths, at) for item, at in items if at not in paths]
    return value


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


def _left_out(problem: Problem) -> str:
    """Return the path that a version leaves out because a later one has written it; empty: it is an error."""
    if problem.message.startswith(UNKNOWN):
        return problem.path
    found = _PART_OF_STATUS.match(problem.path)
    return found[0] if found else ""

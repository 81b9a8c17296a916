"""Jobs as text: one or several YAML documents, read as `kubectl` reads them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from rollfleet_api.fields import child
from rollfleet_api.job import CollectorJob
from rollfleet_api.validation import JobErrors, Problem, parse_job

_TAG: Final = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with kubectl's numbers and without dates. A repeated key is an error.

    PyYAML would read `1e-3` as text, `1:30` as ninety and `2026-01-01` as a date.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own name)
        first: [(tag, pattern) for tag, pattern in known if tag.removeprefix(_TAG) not in ("int", "float", "timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)  # as it was written: a later merge changes it
        seen: dict[object, yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                if key.value in seen:
                    first = seen[key.value].start_mark.line + 1
                    raise yaml.constructor.ConstructorError(
                        None, None, f"`{key.value}` is already given in line {first}", key.start_mark
                    )
                seen[key.value] = key
        return node


_INT: Final = r"[-+]?(0b[01_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"
_FLOAT: Final = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(_INT), list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(_FLOAT), list("-+0123456789."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document, read as a job.

    Attributes:
        data: The document's content.
        job: The job; None if the document is invalid.
        problems: The errors, in the document's order.
        origin: The text's name in messages.
        number: The document's number in the text, from 1; 0 if it is the only one.
        lines: The line (from 1) of each path in it.
    """

    data: object
    job: CollectorJob | None
    problems: tuple[Problem, ...]
    origin: str
    number: int
    lines: Mapping[str, int]

    def where(self, path: str) -> str:
        """Return file, line and document of a path, for messages: `job.yaml:12 (document 2)`."""
        place = f"{self.origin}:{_line(self.lines, path)}"
        return f"{place} (document {self.number})" if self.number else place


def read_text(file: Path) -> str:
    """Return the text of a file of jobs.

    Raises:
        JobErrors: The file is missing, or cannot be read as text.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not text in UTF-8: byte {error.object[error.start]:#04x} at position {error.start}"
        raise JobErrors([Problem("", message, str(file))]) from error
    except OSError as error:
        raise JobErrors([Problem("", f"cannot be read: {error.strerror}", str(file))]) from error


def read_job(file: Path) -> CollectorJob:
    """Read a file with one job.

    Raises:
        JobErrors: The file cannot be read, has errors, or has several jobs.
    """
    documents = read_documents(read_text(file), origin=str(file))
    if problems := [problem for document in documents for problem in document.problems]:
        raise JobErrors(problems)
    jobs = [document.job for document in documents if document.job]
    if len(jobs) != 1:
        raise JobErrors([Problem("", f"has {len(jobs)} jobs; put each into its own file", str(file))])
    return jobs[0]


def read_documents(text: str, *, origin: str) -> list[Document]:
    """Read the YAML documents of a text, valid or not (JSON is YAML too).

    Args:
        text: The documents, separated by `---`. Empty ones are skipped.
        origin: The text's name in messages, such as a file name.

    Raises:
        JobErrors: The text is not YAML, or is empty.
    """
    try:
        parts = list(_parts(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise JobErrors([_syntax_problem(error, origin)]) from error
    if not parts:
        raise JobErrors([Problem("", "empty; expected a CollectorJob", origin)])
    documents: list[Document] = []
    numbers: dict[str, int] = {}
    for number, (data, lines) in enumerate(parts, start=1):
        job: CollectorJob | None = None
        found: tuple[Problem, ...] = ()
        try:
            job = parse_job(data)
        except JobErrors as errors:
            found = errors.problems
        if job and job.key in numbers:
            message = f"`{job.key}` is already the job of document {numbers[job.key]}; give it another name"
            found = (Problem("metadata.name", message),)
        elif job:
            numbers[job.key] = number
        shown = number if len(parts) > 1 else 0
        document = Document(data=data, job=job, problems=(), origin=origin, number=shown, lines=lines)
        placed = [replace(problem, where=document.where(problem.path)) for problem in found]
        placed.sort(key=lambda problem: _line(document.lines, problem.path))
        documents.append(replace(document, problems=tuple(placed)))
    return documents


def _parts(text: str) -> Iterator[tuple[object, dict[str, int]]]:
    """Yield each document that is not empty: its data, and the line (from 1) of each path in it."""
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # guaranteed by check_node()
            lines = dict(_lines(node, "", node.start_mark.line + 1, set()))
            data = loader.construct_document(node)
            if data is not None:
                yield data, lines
    finally:
        loader.dispose()


def _lines(node: yaml.Node, path: str, line: int, above: set[int]) -> Iterator[tuple[str, int]]:
    yield path, line
    if id(node) in above:  # an alias of a node that contains it
        return
    inside = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _lines(value, child(path, str(key.value)), key.start_mark.line + 1, inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, child(path, index), item.start_mark.line + 1, inside)


def _line(lines: Mapping[str, int], path: str) -> int:
    """Return the line of a path, or of the nearest existing path above it."""
    while path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines[path]


def _syntax_problem(error: Exception, origin: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        context = f" {error.context}" if error.context else ""
        return Problem("", f"not YAML: {error.problem}{context}", f"{origin}:{mark.line + 1}:{mark.column + 1}")
    if isinstance(error, RecursionError):
        return Problem("", "not readable YAML: nested too deeply", origin)
    return Problem("", f"not YAML: {' '.join(str(error).split())}", origin)

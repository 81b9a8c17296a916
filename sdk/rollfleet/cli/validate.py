"""`rollfleet validate`: what is wrong with jobs in files, before anything runs.

The models of `rollfleet_api` say most of it. Here is what they cannot know: which environments Gymnasium has, and what
can be imported. Jobs that bring their own code (`spec.source`, `spec.image`) are not held to what is installed here.
"""

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO, TypeVar

from pydantic import ValidationError

from rollfleet_api.documents import Document, read_documents
from rollfleet_api.job import Backend, EnvSpec, PolicySpec
from rollfleet_api.validation import JobErrors, Problem

STDIN_NAME = "standard input"

Part = TypeVar("Part", EnvSpec, PolicySpec)


def validate(paths: list[str], *, stdin: TextIO, out: TextIO) -> int:
    """Tell everything that is wrong with the jobs in files, one problem a line, or which jobs are valid.

    Args:
        paths: Files of one or several YAML documents; `-` is standard input.
        stdin: What `-` reads.
        out: Where the messages go.

    Returns:
        The exit code: 0 where all is well, 1 where something is wrong.
    """
    failed = False
    for path in paths:
        origin = STDIN_NAME if path == "-" else path
        try:
            documents = read_documents(_read(path, stdin), origin=origin)
        except JobErrors as errors:
            failed = True
            print(errors, file=out)
            continue
        folder = Path.cwd() if path == "-" else Path(path).resolve().parent
        with _importing_from(folder):
            for document in documents:
                problems = [*document.problems, *_found_here(document)]
                failed = failed or bool(problems)
                for problem in problems:
                    print(problem, file=out)
                if not problems and document.job:
                    print(f"{document.where('')}: {document.job.key} is valid", file=out)
    return int(failed)


def _read(path: str, stdin: TextIO) -> str:
    origin = STDIN_NAME if path == "-" else path
    try:
        return stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise JobErrors([Problem("", "no such file", origin)]) from error
    except IsADirectoryError as error:
        raise JobErrors([Problem("", "is a folder; name the files in it", origin)]) from error
    except UnicodeDecodeError as error:
        message = f"not text in UTF-8: byte {error.object[error.start]:#04x} at position {error.start}"
        raise JobErrors([Problem("", message, origin)]) from error
    except OSError as error:
        raise JobErrors([Problem("", f"cannot be read: {error.strerror}", origin)]) from error


def _found_here(document: Document) -> Iterator[Problem]:
    """What only this machine can tell about a document, also where something else is wrong with it."""
    raw = document.data.get("spec") if isinstance(document.data, Mapping) else None
    if not isinstance(raw, Mapping):
        return
    env, policy = _part(EnvSpec, raw.get("env")), _part(PolicySpec, raw.get("policy"))
    brings_code = bool(raw.get("source") or raw.get("image"))
    for path, message in _unknown_names(env, policy, brings_code):
        yield Problem(path, message, document.where(path))


def _part(model: type[Part], data: object) -> Part | None:
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError:
        return None  # told already


def _unknown_names(env: EnvSpec | None, policy: PolicySpec | None, brings_code: bool) -> Iterator[tuple[str, str]]:
    entrypoints: dict[str, str | None] = {}
    if env:
        # EnvPool's environments are in a registry of its own, which only a worker that has EnvPool can ask.
        known_here = env.id is not None and env.backend is Backend.GYMNASIUM
        if known_here and (message := _environment_problem(env.id or "", brings_code)):
            yield "spec.env.id", message
        entrypoints["spec.env.entrypoint"] = env.entrypoint
        for index, wrapper in enumerate(env.wrappers):
            entrypoints[f"spec.env.wrappers[{index}].entrypoint"] = wrapper.entrypoint
    if policy:
        entrypoints["spec.policy.entrypoint"] = policy.entrypoint
    for path, entrypoint in entrypoints.items():
        if entrypoint is not None and not brings_code and (message := _entrypoint_problem(entrypoint)):
            yield path, message


# --- Environments ----------------------------------------------------------------------------------------------------


def _environment_problem(env_id: str, brings_code: bool) -> str:
    """What is wrong with an environment's id; empty: nothing."""
    # Not at the top: a machine that validates jobs of other code should not wait for gymnasium to start the CLI.
    from gymnasium.envs.registration import parse_env_id, registry

    module, _, name = env_id.rpartition(":")
    if module:
        if brings_code:
            return ""
        if message := _module_problem(module):
            return message
    if name in registry:
        return ""
    namespace, base, version = parse_env_id(name)
    versions: dict[str, list[tuple[int, str]]] = {}
    for registered in registry.values():
        known = f"{registered.namespace}/{registered.name}" if registered.namespace else registered.name
        versions.setdefault(known, []).append((registered.version or 0, registered.id))
    asked = f"{namespace}/{base}" if namespace else base
    if asked in versions:
        if version is None:
            return ""  # Gymnasium takes the newest
        listed = ", ".join(f"`{known}`" for _, known in sorted(versions[asked]))
        return f"`{env_id}` is no registered environment; write `{max(versions[asked])[1]}` (registered: {listed})"
    if brings_code:
        return ""
    plain = {known.lower(): known for known in versions}
    near = difflib.get_close_matches(asked.lower(), plain, n=1, cutoff=0.6)
    if near:
        of_near = versions[plain[near[0]]]
        same = [known for number, known in of_near if number == version]
        return f"`{env_id}` is no registered environment; did you mean `{same[0] if same else max(of_near)[1]}`?"
    if namespace and not any(known.startswith(f"{namespace}/") for known in versions):
        return (
            f"`{env_id}` is no registered environment: nothing registers `{namespace}/`; install the package that "
            f"does, or name it: `package:{name}`"
        )
    return f"`{env_id}` is no registered environment; write `module:{name}` if a module registers it when imported"


# --- Entrypoints -----------------------------------------------------------------------------------------------------


def _entrypoint_problem(entrypoint: str) -> str:
    """What is wrong with a `module:callable` of good form; empty: nothing."""
    module, _, name = entrypoint.partition(":")
    if message := _module_problem(module):
        return message
    found: object = sys.modules[module]
    for part in name.split("."):
        if not hasattr(found, part):
            public = [known for known in dir(found) if not known.startswith("_")]
            near = difflib.get_close_matches(part, public, n=1)
            return f"`{module}` has no `{name}`" + (f"; did you mean `{module}:{near[0]}`?" if near else "")
        found = getattr(found, part)
    if not callable(found):
        return f"`{entrypoint}` is a {type(found).__name__}, and cannot be called"
    return ""


def _module_problem(module: str) -> str:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            return f"there is no module `{error.name}` here; install it, or give the workers the code in `spec.source`"
        return f"`{module}` cannot be imported: {error}"
    except Exception as error:  # whatever the module does when it is imported
        return f"`{module}` cannot be imported: {type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let modules beside the file and in the current folder be imported, and forget them afterwards.

    Two examples may both have an `envs.py`: the first one's must not pass for the second one's.
    """
    before = list(sys.path)
    folders = [str(folder), os.getcwd()]
    known = set(sys.modules)
    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == folder:
                del sys.modules[name]

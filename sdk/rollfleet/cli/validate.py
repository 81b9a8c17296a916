"""The check behind `rollfleet validate`: find the mistakes of jobs in files before anything runs.

The models of `rollfleet_api` check the fields. This module adds the types of pod templates, and what only a machine
knows: the environments that Gymnasium registers, the modules that can be imported, and whether one environment and its
policy can be made of them. Jobs with their own code (`spec.source`, `spec.image`) are not checked against the packages
of this machine.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO, TypeVar

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from rollfleet.cluster.template_types import template_problems
from rollfleet.system.entrypoints import imported, load
from rollfleet.transports.hooks import HOOKS
from rollfleet_api.collection import CollectSpec, WeightsSpec
from rollfleet_api.documents import Document, read_documents, read_text
from rollfleet_api.job import Backend, CollectorJob, EnvSpec, PolicySpec
from rollfleet_api.validation import JobErrors, Problem

STDIN_NAME = "standard input"

Part = TypeVar("Part", EnvSpec, PolicySpec, CollectSpec, WeightsSpec)


def validate(paths: list[str], *, stdin: TextIO, out: TextIO) -> int:
    """Print each problem of the jobs in files (`-`: standard input), one a line, and each valid job.

    Returns:
        The exit code: 0 if all jobs are valid, 1 otherwise.
    """
    failed = False
    for path in paths:
        origin = STDIN_NAME if path == "-" else path
        try:
            documents = read_documents(stdin.read() if path == "-" else read_text(Path(path)), origin=origin)
        except JobErrors as errors:
            failed = True
            print(errors, file=out)
            continue
        folder = Path.cwd() if path == "-" else Path(path).resolve().parent
        with importing_from(folder):
            for document in documents:
                problems = [*document.problems, *_local_problems(document)]
                failed = failed or bool(problems)
                for problem in problems:
                    print(problem, file=out)
                if not problems and document.job:
                    metadata = document.job.metadata
                    name = document.job.key if "namespace" in metadata.model_fields_set else metadata.name
                    print(f"{document.where('')}: {name} is valid", file=out)
    return int(failed)


def check_environment(job: CollectorJob, *, origin: str) -> None:
    """Check the id of a job's environment, before the processes of a run start.

    Raises:
        JobErrors: Nothing on this machine registers it.
    """
    env = job.spec.env
    may_be_registered_later = bool(env.wrappers) or ":" in (env.id or "")  # by a module that only workers import
    if message := _environment_problem(env, may_be_registered_later):
        raise JobErrors([Problem("spec.env.id", message, origin)])


def _local_problems(document: Document) -> Iterator[Problem]:
    """Yield the problems that only this machine can find, also in a document with other problems."""
    raw = document.data.get("spec") if isinstance(document.data, Mapping) else None
    if not isinstance(raw, Mapping):
        return
    problems = list(_unknown_names(raw, bool(raw.get("source") or raw.get("image"))).items())
    env = raw.get("env")
    servers = env.get("servers") if isinstance(env, Mapping) else None
    parts = {"spec": raw, "spec.env.servers": servers, "spec.learner": raw.get("learner"), "spec.nats": raw.get("nats")}
    problems += (found for path, part in parts.items() for found in template_problems(part, path))
    for path, message in problems:
        if message:
            yield Problem(path, message, document.where(path))


def _part(model: type[Part], data: object) -> Part | None:
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError:
        return None  # reported already


def _unknown_names(spec: Mapping[str, object], brings_code: bool) -> Mapping[str, str]:
    """Return the problem at each path; empty: none."""
    env, policy = _part(EnvSpec, spec.get("env")), _part(PolicySpec, spec.get("policy"))
    collect, weights = _part(CollectSpec, spec.get("collect")), _part(WeightsSpec, spec.get("weights"))
    found = {"spec.env.id": _environment_problem(env, brings_code) if env else ""}
    if not brings_code:
        named = entrypoints(env, policy, collect, weights)
        found |= {path: _failure(load, entrypoint) for path, entrypoint in named.items()}
        if env and policy and not any(found.values()) and "spec.collect.initFn" not in named:
            found |= _unmade(env, policy)
    return found


def _unmade(env: EnvSpec, policy: PolicySpec) -> Mapping[str, str]:
    """Make an environment and its policy once. A package that this machine lacks is no problem of the job."""
    import gymnasium

    from rollfleet.envs.factory import make_one
    from rollfleet.errors import JobInvalid
    from rollfleet.policies.factory import make_policy

    path, here = "spec.env", policy.model_copy(update={"device": "cpu"})
    try:
        with contextlib.closing(make_one(env)) as made:
            path = "spec.policy"
            make_policy(here, made.single_observation_space, made.single_action_space)
    except JobInvalid as error:
        if not isinstance(error.__cause__, ImportError | gymnasium.error.DependencyNotInstalled):
            return {path: str(error)}
    return {}


def entrypoints(
    env: EnvSpec | None, policy: PolicySpec | None, collect: CollectSpec | None, weights: WeightsSpec | None
) -> dict[str, str]:
    """Return the names of code, `module:callable`, in the parts of a job's spec, by their path."""
    found: dict[str, str | None] = {}
    if env:
        found["spec.env.entrypoint"] = env.entrypoint
        found |= {f"spec.env.wrappers[{index}].entrypoint": each.entrypoint for index, each in enumerate(env.wrappers)}
    if policy:
        found["spec.policy.entrypoint"] = policy.entrypoint
    if collect:
        found |= {f"spec.collect.{to_camel(name)}": getattr(collect, name) for name in HOOKS}
    if weights:
        found["spec.weights.scheme"] = weights.scheme
    return {path: name for path, name in found.items() if name is not None}


def _environment_problem(env: EnvSpec, brings_code: bool) -> str:
    """Return the problem of an environment's id; empty if it is valid."""
    if env.id is None or env.backend is not Backend.GYMNASIUM:
        return ""  # EnvPool has its own registry, which only a worker with EnvPool can query
    # Not at the top: commands that do not need gymnasium should not wait for its import.
    import gymnasium

    module, _, name = env.id.rpartition(":")
    if module and (brings_code or (message := _failure(imported, module))):
        return "" if brings_code else message
    try:
        gymnasium.spec(name)
    except (gymnasium.error.VersionNotFound, gymnasium.error.DeprecatedEnv) as error:
        return f"`{env.id}` is not a registered environment: {error}"
    except gymnasium.error.UnregisteredEnv as error:
        if not brings_code:
            hint = f"Install its package, or write `module:{name}` if a module registers it when imported"
            return f"`{env.id}` is not a registered environment: {error} {hint}"
    except gymnasium.error.Error:
        pass  # an id without a version: Gymnasium uses the newest one
    return ""


def _failure(work: Callable[[str], object], value: str) -> str:
    try:
        work(value)
    except ValueError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Make modules beside the file and in the current folder importable, and unload them afterwards.

    Installed modules come first: a file beside a job cannot take the place of one. Two examples may both have an
    `envs.py`: each job must be checked with its own.
    """
    before = list(sys.path)
    folders = [str(folder), os.getcwd()]
    known = set(sys.modules)
    sys.path += folders
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and (Path(file).parent == folder or folder / name.partition(".")[0] in Path(file).parents):
                del sys.modules[name]

"""A job of any size and form costs the operator's loop little: each look at it is one call of these functions.

Processor time of this thread counts, so that a busy machine changes nothing.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crds.crd import crd
from tests.api.job_data import SMALLEST, job_data
from tests.control.pure.scene import Scene, wanted

from rollfleet_api.state.status import status
from rollfleet_api.state.verdict import Stage
from rollfleet_api.validation import MAX_SPEC_BYTES, JobErrors, Oversized, bounded, parse_job
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import TemplateInvalid
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.plan import plan_access, plan_runs

LOOK_S = 1.0
API_SERVER_BYTES = 1_500_000
JOB = JobKey("lab", "cartpole")

Path = tuple[str, ...]


def free_fields(schema: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the fields of a schema that hold what users like: any object, or a mapping of any names."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema:
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from free_fields(inner, (*path, name))
    if "items" in schema:
        yield from free_fields(schema["items"], (*path, "0"))


SCHEMA: Any = crd()
FIELDS = [*free_fields(SCHEMA["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])]


def of_size(item: Callable[[int], Any], nbytes: int) -> list[Any]:
    """Return items of this many bytes as JSON, together."""
    size = len(json.dumps(item(10_000_000), separators=(",", ":"))) + 1
    return [item(10_000_000 + number) for number in range(nbytes // size)]


def one_variable(number: int) -> Any:
    return {"name": "A", "value": f"{number}"}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


def pod(**spec: Any) -> Any:
    """A template of pods."""
    return {"spec": spec}


FORMS: dict[str, Callable[[int], Any]] = {
    "names": lambda size: {f"x{number}": "1" for number in range(size // 16)},
    "text": lambda size: pod(hostname="x" * size),
    "empty-lists": lambda size: pod(tolerations=[[]] * (size // 3)),
    "deep": lambda size: pod(tolerations=[nested(40)] * (size // 83)),
    "one-name": lambda size: pod(containers=of_size(lambda _: {"name": "worker", "env": [{"name": "A1"}]}, size)),
    "containers": lambda size: pod(containers=of_size(lambda n: {"name": f"c{n}", "env": [{"name": f"A{n}"}]}, size)),
    "variables": lambda size: pod(containers=[{"name": "worker", "env": of_size(lambda n: {"name": f"A{n}"}, size)}]),
    "one-variable": lambda size: pod(containers=[{"name": "worker", "env": of_size(one_variable, size)}]),
    "init": lambda size: pod(initContainers=[{"name": "i", "env": of_size(one_variable, size)}]),
    "volumes": lambda size: pod(volumes=of_size(lambda n: {"name": f"v{n}"}, size)),
}


def stored(path: Path, value: Any) -> Manifest:
    """Return a job whose field at this path has this value."""
    for name in reversed(path):
        value = [{"entrypoint": "a:b", **value}] if name == "0" else {name: value}
    usual = SMALLEST | {"policy": {"entrypoint": "a:b"}}
    metadata = {"namespace": JOB.namespace, "uid": "a", "generation": 1, "resourceVersion": "7"}
    return job_data(metadata, **{field: usual.get(field, {}) | inner for field, inner in value.items()})


def look(manifest: Manifest) -> str:
    """Do once what a reconciliation computes of a job. Returns the error of an invalid one."""
    try:
        job = parse_job(manifest)
    except JobErrors as errors:
        return str(errors)
    try:
        children = wanted(job)
    except TemplateInvalid as error:
        return str(error)
    scene = Scene(job, tuple(children.values()))
    plan_access([*children.values()], scene.observed, {})
    plan_runs(job, [*children.values()], scene.observed, Stage.LIVE)
    status(scene.snapshot)
    return ""


def assert_cheap(work: Callable[[], object], most_s: float = LOOK_S) -> None:
    """One of ten calls takes less processor time than this: others on the same core make one many times slower."""
    least_s = math.inf
    for _ in range(10):
        began = time.thread_time()
        work()
        least_s = min(least_s, time.thread_time() - began)
        if least_s < most_s:
            return
    raise AssertionError(f"it takes {least_s:.3f} s, and may take {most_s:g} s")


def test_the_crd_has_free_fields() -> None:
    assert {("template",), ("learner", "template"), ("env", "kwargs"), ("resources", "limits")} <= {*FIELDS}


@pytest.mark.parametrize("form", FORMS)
def test_a_job_of_the_largest_size_costs_little_to_refuse(form: str) -> None:
    manifest, cache = stored(("template",), FORMS[form](API_SERVER_BYTES)), Cache()  # its size counts, not its field
    assert_cheap(lambda: Cache().put({**manifest}))
    cache.put(manifest)
    kept = cache.job(JOB)
    assert kept is not None
    assert isinstance(kept["spec"], Oversized)
    assert_cheap(lambda: look(kept), 0.05)
    assert "at most 65,536 are allowed" in look(kept)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_a_job_of_the_largest_allowed_size_costs_little(path: Path, form: str) -> None:
    manifest = stored(path, FORMS[form](MAX_SPEC_BYTES - 1000))
    assert bounded(manifest["spec"]) is manifest["spec"]
    assert_cheap(lambda: look(manifest))


def test_two_containers_of_one_name_are_an_error() -> None:
    twice = pod(containers=[{"name": "worker"}, {"name": "worker"}])
    assert look(stored(("template",), twice)) == "`spec.containers` of a template has 2 containers `worker`; write one"

"""Limits: the most that a job, and the jobs of a namespace, may ask for."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from rollfleet_api.job import CollectorJob
from rollfleet_api.validation import parse_stored_job
from rollfleet_operator.cache import Cache
from rollfleet_operator.desired import Inputs, kept_runs
from rollfleet_operator.limit_keeper import LimitKeeper, requested
from rollfleet_operator.limits import Limits, Request
from rollfleet_operator.manifest import Manifest, overlay
from rollfleet_operator.nats_port import Endpoint
from rollfleet_operator.observed import observe
from rollfleet_operator.settings import Settings, SettingsInvalid

MakeJob = Callable[..., CollectorJob]
GPU: dict[str, Any] = {"gpu": {"count": 2}}


class Lab:
    """A namespace's jobs, and a keeper of limits."""

    def __init__(self, make: MakeJob, **limits: str) -> None:
        self._make, self.cache = make, Cache()
        parsed: Any = {name: Limits.parse(text) for name, text in limits.items()}
        self.keeper = LimitKeeper(self.cache, Settings(**parsed))

    def put(self, name: str, *, namespace: str = "lab", status: Any = None, **spec: Any) -> CollectorJob:
        """A user creates or edits a job."""
        place: Any = {"metadata": {"uid": name, "namespace": namespace, "resourceVersion": "1"}}
        place |= {"status": status} if status else {}
        manifest: Manifest = overlay(self._make(name, **spec).dump(), place)
        self.cache.put(manifest)
        return parse_stored_job(manifest)[0]

    def asks(self, name: str, **spec: Any) -> str:
        """Return why a job is refused; empty: it is admitted."""
        return str(self.keeper.refused(self.put(name, **spec)) or "")


@pytest.fixture
def lab(job: MakeJob) -> Callable[..., Lab]:
    """Builds a `Lab`."""
    return lambda **limits: Lab(job, **limits)


def test_a_job_asks_for_its_most_workers_their_devices_and_its_storage(job: MakeJob) -> None:
    learner = {"template": {"spec": {"containers": [{"name": "l", "resources": {"limits": {"a.com/gpu": 1}}}]}}}
    plain = job(workers=3, resources=GPU, learner=learner, delivery={"maxBytes": "1Gi"})
    assert requested(plain, Settings()) == Request(workers=3, gpus=7, max_bytes=1 << 30)
    growing = job(workers=3, autoscale={"maxWorkers": 5}, resources=GPU)
    assert (requested(growing, Settings()).workers, requested(growing, Settings()).gpus) == (5, 10)


def test_devices_of_templates_and_claims_are_counted(job: MakeJob) -> None:
    limits = {"resources": {"limits": {"a.com/gpu": 1}}}
    spec = {
        "containers": [{"name": "worker", **limits}],
        "initContainers": [{"name": "a", **limits}],
        "resourceClaims": [{"name": "b"}],
    }
    assert requested(job(workers=2, template={"spec": spec}), Settings()).gpus == 6


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


@pytest.mark.parametrize("amount", ["8", 8, 8.0, "8000m", "8e0", "+8", "0.008k"])
def test_devices_are_counted_in_every_notation(job: MakeJob, amount: object) -> None:
    template = container(resources={"limits": {"a.com/gpu": amount}})
    assert requested(job(workers=2, template=template), Settings()).gpus == 16


ODD = [
    {"spec": 5},
    {"spec": {"initContainers": [None]}},
    {"spec": {"initContainers": 5}},
    {"spec": {"resourceClaims": 5}},
    container(resources={"limits": {"a.com/gpu": "many"}}),
]


@pytest.mark.parametrize("template", ODD, ids=str)
def test_a_job_whose_devices_cannot_be_counted_gets_no_more_and_leaves_others_alone(
    lab: Callable[..., Lab], template: dict[str, Any]
) -> None:
    limited = lab(limits_per_namespace='{"workers": 4}')
    assert limited.asks("a", workers=3) == ""
    assert "of a template" in limited.asks("a", workers=50, template=template)
    assert limited.asks("b", workers=2), "the other three are still held"
    assert limited.asks("b", workers=1) == ""
    limited.put("was-there", workers=1, template=template, status={"phase": "Running"})
    assert limited.asks("b", workers=1) == ""


@pytest.mark.parametrize(
    ("limit", "spec", "message"),
    [
        ('{"workers": 4}', {"workers": 5}, r".*asks for 5 `workers` .* may have 4 here.*`limits.perJob.workers`"),
        ('{"gpus": 4}', {"workers": 3, "resources": GPU}, r".*asks for 6 GPUs.* may have 4 here.*`limits.perJob.gpus`"),
        (
            '{"maxBytes": "1Gi"}',
            {"delivery": {"maxBytes": "2Gi"}},
            ".*asks for 2048 MiB `delivery.maxBytes`.*1024 MiB here.*",
        ),
    ],
)
def test_job_above_a_limit_is_refused_in_one_line(
    lab: Callable[..., Lab], limit: str, spec: dict[str, Any], message: str
) -> None:
    limited = lab(limits_per_job=limit)
    why = limited.asks("a", **spec)
    assert re.fullmatch(message, why)
    assert limited.asks("a", workers=1, delivery={"maxBytes": "64Mi"}) == ""


def test_jobs_of_a_namespace_share_its_limit_in_the_order_in_which_they_came(lab: Callable[..., Lab]) -> None:
    limited = lab(limits_per_namespace='{"workers": 4}')
    assert limited.asks("a", workers=3) == ""
    assert re.fullmatch(
        r"the job asks for 2 .*, and other jobs hold 3 of the 4 of namespace lab: .*`limits.perNamespace.workers`",
        limited.asks("b", workers=2),
    )
    assert limited.asks("c", workers=1) == ""
    assert limited.asks("d", workers=4, namespace="other") == ""
    assert limited.asks("a", workers=3) == "", "an admitted job is not refused later"


@pytest.mark.parametrize("how", [{"suspend": True}, {"workers": 1}])
def test_a_job_that_needs_less_leaves_the_rest_to_others(lab: Callable[..., Lab], how: dict[str, Any]) -> None:
    limited = lab(limits_per_namespace='{"workers": 4}')
    assert limited.asks("a", workers=3) == ""
    assert limited.asks("b", workers=2)
    assert limited.asks("a", **how) == ""
    assert limited.asks("b", workers=2) == ""


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_ended_and_deleted_jobs_hold_nothing(lab: Callable[..., Lab], end: str) -> None:
    limited = lab(limits_per_namespace='{"workers": 4}')
    assert limited.asks("a", workers=4) == ""
    ended = {"type": end, "status": "True", "reason": "A", "observedGeneration": 1}
    assert limited.asks("a", workers=4, status={"conditions": [ended]}) == ""
    assert limited.asks("b", workers=4) == ""
    (manifest,) = (each for each in limited.cache.jobs().values() if each["metadata"]["name"] == "b")
    limited.cache.remove(manifest)
    assert limited.asks("c", workers=4) == ""


def test_a_refused_edit_leaves_a_job_what_it_had(lab: Callable[..., Lab]) -> None:
    limited = lab(limits_per_namespace='{"workers": 4}')
    assert limited.asks("a", workers=3) == ""
    assert limited.asks("a", workers=5)
    assert limited.asks("b", workers=2), "the other three are still held"
    assert limited.asks("b", workers=1) == ""


def test_a_later_operator_knows_which_jobs_were_admitted(lab: Callable[..., Lab]) -> None:
    limited = lab(limits_per_namespace='{"workers": 4}')
    refused = {"type": "Degraded", "status": "True", "reason": "LimitExceeded"}
    limited.put("was-refused", workers=4, status={"conditions": [refused]})
    limited.put("was-admitted", workers=3, status={"phase": "Running"})
    limited.put("is-new", workers=4)
    assert limited.asks("b", workers=2)
    assert limited.asks("b", workers=1) == ""


def test_without_limits_every_job_is_admitted(lab: Callable[..., Lab]) -> None:
    assert lab().asks("a", workers=65536) == ""


def test_runs_of_a_refused_job_shrink_and_do_not_grow(scene: Callable[..., Any]) -> None:
    before = scene(workers=4)
    observed = observe(before.children, [])
    inputs = Inputs(settings=Settings(), endpoint=Endpoint(url="nats://a"), credentials={})
    for workers, size in ((8, 4), (2, 2)):
        (run,) = kept_runs(before.edited(workers=workers).job, inputs, observed, grow=False)
        assert run["spec"]["parallelism"] == run["spec"]["completions"] == size


def test_limits_are_read_from_the_charts_variables() -> None:
    found = Settings.read({"ROLLFLEET_LIMITS_PER_JOB": '{"workers": 8, "maxBytes": "4Gi"}'})
    assert found.limits_per_job == Limits((("workers", 8), ("maxBytes", 4 << 30)))
    assert found.limits_per_namespace == Limits()


@pytest.mark.parametrize("text", ["8", '{"worker": 8}', '{"workers": "many"}', '{"maxBytes": "big"}', "{"])
def test_mistake_in_a_limit_is_named(text: str) -> None:
    with pytest.raises(SettingsInvalid, match="ROLLFLEET_LIMITS_PER_NAMESPACE"):
        Settings.read({"ROLLFLEET_LIMITS_PER_NAMESPACE": text})

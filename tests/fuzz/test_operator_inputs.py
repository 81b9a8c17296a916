"""What users, clients of NATS and other controllers may write: the operator's decisions survive all of it."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.control.pure.scene import NOW_S, Scene, a_job, wanted

from rollfleet_api.frame_rate import FrameRate
from rollfleet_api.job import API_VERSION, KIND
from rollfleet_api.kubernetes_names import JOB_LABEL, ROLE_LABEL
from rollfleet_api.messages import LearnerStatus, MessageInvalid, WorkerState, WorkerStatus, unpack
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.state.status import status
from rollfleet_api.state.verdict import verdict
from rollfleet_api.validation import JobErrors, parse_job
from rollfleet_operator.autoscale import History, decide
from rollfleet_operator.errors import TemplateInvalid
from rollfleet_operator.events import event, events_between
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.plan import plan_access, plan_runs

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(
    scalars, lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3)
)


def mapping(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mappings with these fields, all of them optional, any of them of a wrong type."""
    return st.fixed_dictionaries({}, optional={name: part | values for name, part in parts.items()})


def typed(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mappings with these fields, all of them optional: the API server checks the types of its own objects."""
    return st.fixed_dictionaries({}, optional=parts)


containers = st.lists(
    mapping(
        name=st.sampled_from(["worker", "learner", "side"]),
        image=st.text(max_size=5),
        env=st.lists(mapping(name=st.sampled_from(["HOME", "A"]), value=st.text(max_size=3)), max_size=3),
        ports=st.lists(mapping(containerPort=st.integers(1, 3), protocol=st.sampled_from(["TCP", "UDP"])), max_size=3),
        volumeMounts=st.lists(mapping(name=st.just("tmp"), mountPath=st.sampled_from(["/tmp", "/a"])), max_size=3),
        resources=mapping(limits=mapping(cpu=st.just("1")), claims=st.lists(values, max_size=2)),
        securityContext=values,
    ),
    max_size=3,
)
templates = mapping(
    metadata=mapping(labels=st.dictionaries(st.text(max_size=3), values, max_size=2), annotations=values),
    spec=mapping(
        containers=containers,
        initContainers=containers,
        volumes=st.lists(mapping(name=st.sampled_from(["tmp", "shm"]), emptyDir=values), max_size=3),
        tolerations=values,
        resourceClaims=values,
        securityContext=values,
        restartPolicy=values,
    ),
)


def reconciled(scene: Scene) -> None:
    """Every decision of a reconciliation, and the JSON of what it would write."""
    job, observed, found = scene.job, scene.observed, scene.verdict
    children = [*wanted(job).values()]
    runs, rights = ([each for each in children if (each["kind"] == "Job") is is_run] for is_run in (True, False))
    for known in (runs, None):
        actions = plan_runs(job, known, observed, found.stage) + plan_access(rights, observed, {})
        json.dumps([getattr(action, "manifest", None) or getattr(action, "patch", None) for action in actions])
    rate = FrameRate()
    rates = [rate.update(scene.heartbeats.learner, NOW_S) for _ in range(2)]
    now = status(replace(scene.snapshot, frames_per_second=rates[-1]))
    text = json.dumps(now.model_dump(mode="json", by_alias=True, exclude_none=True), allow_nan=False)
    again = job.model_copy(update={"status": type(now).model_validate(json.loads(text), by_alias=True)})
    for announcement in events_between(None, now):
        assert len(event(again, announcement, NOW_S)["message"]) <= 1024
    verdict(again, observed, scene.heartbeats, NOW_S + 1)


@given(worker=templates, learner=templates)
@SETTINGS
def test_any_template_makes_runs_or_is_refused_with_a_reason(worker: Manifest, learner: Manifest) -> None:
    try:
        job = a_job(template=worker, learner={"template": learner})
    except JobErrors:
        return
    try:
        runs = [each for each in wanted(job).values() if each["kind"] == "Job"]
    except TemplateInvalid:
        return
    for run in runs:
        template = run["spec"]["template"]
        assert template["metadata"]["labels"][JOB_LABEL] == "cartpole"
        assert template["spec"]["containers"][0]["name"]
        assert template["spec"]["restartPolicy"] == "Never"


@given(
    spec=mapping(workers=st.integers(-1, 9), env=mapping(id=st.text()), suspend=st.booleans(), template=templates),
    metadata=mapping(labels=values, annotations=values, name=st.just("cartpole")),
)
@SETTINGS
def test_any_stored_job_is_a_job_or_has_errors(spec: Any, metadata: Any) -> None:
    with suppress(JobErrors):
        parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})


times = st.sampled_from(["2026-11-21T00:00:00Z", "2026-11-21T00:00:00.123456Z"])
ended = typed(exitCode=st.integers(0, 255), reason=st.text(max_size=5), message=st.text(), finishedAt=times)
states = typed(running=st.just({}), terminated=ended, waiting=typed(reason=st.just("ErrImagePull")))
conditions = st.lists(
    typed(
        type=st.sampled_from(["Complete", "Failed", "PodScheduled", "DisruptionTarget"]),
        status=st.sampled_from(["True", "False"]),
        message=st.text(max_size=2000),
        lastTransitionTime=times,
    ),
    max_size=3,
)
pod_status = typed(
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    conditions=conditions,
    containerStatuses=st.lists(typed(name=st.just("worker"), state=states), max_size=2),
    initContainerStatuses=st.lists(typed(state=states), max_size=1),
)
pod_labels = st.fixed_dictionaries({}, optional={ROLE_LABEL: st.sampled_from(["worker", "learner", "", "x"])})
indices = st.fixed_dictionaries(
    {}, optional={"batch.kubernetes.io/job-completion-index": st.sampled_from(["0", "1", "x", ""])}
)


@given(
    data=st.data(),
    run_status=typed(conditions=conditions, failed=st.integers(0, 5)),
    learner=st.booleans(),
    suspend=st.booleans(),
)
@SETTINGS
def test_any_children_leave_the_job_reconcilable(data: Any, run_status: Any, learner: bool, suspend: bool) -> None:
    job = a_job(suspend=suspend, learner={"template": {}} if learner else None)
    children = [*Scene(job).with_children().children]
    runs = [child for child in children if child["kind"] == "Job"]
    runs[0]["status"] = run_status
    foreign = {**runs[0], "metadata": {**runs[0]["metadata"], "name": data.draw(st.text(max_size=9)), "uid": "foreign"}}
    owners = st.sampled_from([runs[0]["metadata"]["uid"], "x"])
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"pod-{number}",
                "namespace": "lab",
                "uid": f"pod-{number}",
                "resourceVersion": "7",
                "labels": data.draw(pod_labels),
                "annotations": data.draw(indices | st.none()),
                "creationTimestamp": "2026-11-21T00:00:00Z",
                "ownerReferences": [{"kind": "Job", "uid": data.draw(owners)}],
            },
            "spec": runs[0]["spec"]["template"]["spec"],
            "status": data.draw(pod_status),
        }
        for number in range(data.draw(st.integers(0, 3)))
    ]
    reconciled(Scene(job, (*children, foreign), tuple(pods)))


numbers = st.floats(0, 1e12) | st.sampled_from([NOW_S, NOW_S - 1, -0.0, 5e-324])
texts = st.none() | st.text() | st.sampled_from([" \n", "x" * 33_000, "\x00", "\u2028"])


def messages(kind: type[Any], **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages of a type with any values that its decoder lets through; None if it refuses them."""
    usual = {each.name: known.get(each.name, numbers | st.integers(0, 3)) for each in fields(kind)}
    return st.fixed_dictionaries(usual).map(lambda values: _decoded(kind, values))


def _decoded(kind: type[Any], written: Any) -> Any:
    try:
        return unpack(kind, json.dumps(written).encode())
    except (MessageInvalid, UnicodeEncodeError):
        return None


of_workers = messages(
    WorkerStatus,
    worker=st.integers(0, 1),
    incarnation=st.integers(0, 3),
    version=st.integers(0, 3),
    frames=st.integers(0, 3),
    batches=st.integers(0, 3),
    state=st.sampled_from(list(map(str, WorkerState))),
    error=texts,
    fatal=st.booleans(),
    mean_return=st.none() | st.floats(),
)
counts = st.integers(0, 3) | st.integers(0, 2**63 - 1)
of_learners = messages(
    LearnerStatus,
    **dict.fromkeys(("session", "version", "applied_version", "frames", "batches", "dropped", "lag"), counts),
    mean_return=st.none() | st.floats(),
    waited_s=numbers,
)


@pytest.fixture(scope="module")
def running() -> Callable[[list[Any], Any], None]:
    """Reconciles a job with two running workers and these heartbeats."""
    scene = Scene(a_job(autoscale={"maxWorkers": 8})).with_children().running(0, 1)

    def reconcile(workers: list[Any], learners: list[Any]) -> None:
        beats = {beat.worker: beat for beat in workers if beat}
        history = History()
        for step, learner in enumerate(learners):
            heartbeats = Heartbeats(workers=beats, learner=learner)
            decided = decide(scene.job, heartbeats, history, NOW_S + step)
            assert 1 <= decided <= 8
            reconciled(replace(scene, heartbeats=heartbeats))

    return reconcile


@given(workers=st.lists(of_workers, max_size=2), learners=st.lists(of_learners, min_size=1, max_size=4))
@SETTINGS
def test_any_heartbeats_leave_the_job_reconcilable(
    running: Callable[[list[Any], list[Any]], None], workers: list[Any], learners: list[Any]
) -> None:
    running(workers, learners)

"""Tests of `plan`: actions from desired and observed state."""

from dataclasses import replace
from typing import Any

import pytest
from tests.control.pure.scene import Scene, scene, wanted

from rollfleet_api.kubernetes_names import ROLE_LABEL
from rollfleet_api.permissions import Role
from rollfleet_api.state.verdict import Stage
from rollfleet_operator import names
from rollfleet_operator.manifest import Ref, overlay, ref
from rollfleet_operator.plan import Apply, Change, Delete, plan_access, plan_runs

QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
OTHERS = {"kueue.x-k8s.io/queue-name": "others"}
LEARNER: dict[str, Any] = {"template": {}}


def planned(scene: Scene, stage: Stage = Stage.LIVE, *, blocked: bool = False, **options: Any) -> list[Any]:
    children = wanted(scene.job)
    runs = [each for which, each in children.items() if which.kind == "Job"]
    rights = [each for which, each in children.items() if which.kind != "Job"]
    actions = plan_runs(scene.job, None if blocked else runs, scene.observed, stage, **options)
    access = [each for each in plan_access(rights, scene.observed, {}) if not _is_edited_job(each)]
    return [*access, *actions]


def _is_edited_job(action: Any) -> bool:
    """Whether a Secret with the job changes, as it does with each edit."""
    return isinstance(action, Apply) and action.manifest["kind"] == "Secret" and not action.new


def run_ref(scene: Scene, role: Role = Role.WORKER) -> Ref:
    return ref(scene.run(role))


def deletion(scene: Scene, role: Role = Role.WORKER) -> Delete:
    return Delete(run_ref(scene, role), scene.run(role)["metadata"]["uid"])


def both_deletions(scene: Scene) -> list[Delete]:
    return sorted([deletion(scene), deletion(scene, Role.LEARNER)], key=str)


def test_new_job_gets_everything_with_what_pods_need_first() -> None:
    actions = planned(replace(scene(), children=()))
    assert all(isinstance(action, Apply) and action.new for action in actions)
    assert [action.manifest["kind"] for action in actions][-1] == "Job"


def test_changed_field_is_repaired() -> None:
    policy = Ref("NetworkPolicy", names.network_policy("cartpole", Role.WORKER))
    (action,) = planned(scene().changed(policy, {"spec": {"policyTypes": ["Ingress"]}}))
    assert isinstance(action, Apply)
    assert (ref(action.manifest), action.new) == (policy, False)


def test_field_that_is_no_longer_wanted_is_removed() -> None:
    account = Ref("ServiceAccount", names.account("cartpole"))
    (action,) = planned(scene().changed(account, {"metadata": {"annotations": {names.APPLIED: "of an earlier one"}}}))
    assert isinstance(action, Apply)


@pytest.mark.parametrize("labels", [{}, QUEUE])
@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize("blocked", [False, True])
def test_scaling_changes_completions_and_parallelism_together(
    labels: dict[str, str], suspended: bool, blocked: bool
) -> None:
    actions = planned(scene(workers=2, labels=labels).suspended(suspended).edited(workers=4), blocked=blocked)
    (action,) = (each for each in actions if isinstance(each, Change))
    assert action.patch == {"spec": {"completions": 4, "parallelism": 4}}


@pytest.mark.parametrize(("workers", "changes"), [(1, 1), (4, 0)])
def test_pods_that_may_not_start_yet_are_not_created_but_are_scaled_down(workers: int, changes: int) -> None:
    actions = planned(scene(workers=2).edited(workers=workers), may_start=False)
    assert len([each for each in actions if isinstance(each, Change)]) == changes
    created = planned(replace(scene(), children=()), may_start=False)
    assert "Job" not in [each.manifest["kind"] for each in created]


def test_runs_stay_while_their_successors_may_not_start() -> None:
    replaced = scene().edited(env={"id": "Pendulum-v1"})
    assert deletion(replaced) in planned(replaced)
    assert not [each for each in planned(replaced, may_start=False) if isinstance(each, Delete)]


def with_additions(scene: Scene) -> Scene:
    for child in scene.children:
        scene = scene.changed(ref(child), {"metadata": {"labels": {"theirs": "1"}}, "status": {"seen": True}})
    return scene


def with_job_of_others(scene: Scene) -> Scene:
    theirs = overlay(scene.run(), {"metadata": {"name": "evaluation", "uid": "theirs", "labels": {ROLE_LABEL: None}}})
    return replace(scene, children=(*scene.children, theirs))


THEIR_TEMPLATE = {"spec": {"template": {"spec": {"hostname": "x"}}}}  # the API server refuses to write it again
THEIR_QUEUE = {"metadata": {"labels": OTHERS}}
SUSPEND = {"spec": {"suspend": True}}
LEAVING = {"metadata": {"deletionTimestamp": "2026-11-21T00:00:00Z"}}


LEARNS = scene(learner=LEARNER)
LEFT = LEARNS.ended("Complete", Role.LEARNER)
FAILED = LEARNS.ended("Failed", Role.LEARNER)
RETRIED = LEARNS.suspended().ended("Failed", Role.LEARNER)
QUEUED, OF_THEIR_QUEUE = scene(labels=QUEUE), scene().run_changed(THEIR_QUEUE)
EVALUATED = scene(learner=LEARNER, evaluation={"every": 1})


def case(fact: str, found: Scene, *actions: Any, stage: Stage = Stage.LIVE, **options: Any) -> Any:
    return pytest.param(found, stage, options, [*actions], id=fact)


@pytest.mark.parametrize(
    ("found", "stage", "options", "actions"),
    [
        case("as desired", scene()),
        case("with additions of others", with_additions(scene())),
        case("of another template", scene().run_changed(THEIR_TEMPLATE)),
        case("suspended by another client", scene().suspended()),
        case("beside a Job of others with its labels", with_job_of_others(scene())),
        case("suspended by its queue", QUEUED.suspended()),
        case("in a queue of another client", OF_THEIR_QUEUE.suspended()),
        case("in deletion", scene().run_changed(LEAVING).edited(workers=7)),
        case("finished", scene().ended("Complete").edited(workers=5)),
        case("whose successor cannot be built", scene(image="a:1").edited(image="a:2"), blocked=True),
        case("of a complete job, which may leave by itself", scene(), stage=Stage.COMPLETE, lingering=True),
        case("of a complete job, which stops", FAILED, Change(run_ref(FAILED), SUSPEND), stage=Stage.COMPLETE),
        case("of a failed job, which stops", FAILED, Change(run_ref(FAILED), SUSPEND), stage=Stage.FAILED),
        case("of a complete job, stopped", FAILED.suspended(), stage=Stage.COMPLETE),
        case("of a failed job, stopped", FAILED.suspended(), stage=Stage.FAILED),
        case("of a complete job, missing", replace(FAILED, children=FAILED.children[:-2]), stage=Stage.COMPLETE),
        case("of a failed job, missing", replace(FAILED, children=FAILED.children[:-2]), stage=Stage.FAILED),
        case("of an ended job, which its queue would resume", QUEUED, deletion(QUEUED), stage=Stage.FAILED),
        case("so, too, if it got its queue later", OF_THEIR_QUEUE, deletion(OF_THEIR_QUEUE), stage=Stage.FAILED),
        case("failed and stopped, on a retry", RETRIED, *both_deletions(RETRIED), stage=Stage.RETRY),
        case("of a learner whose pod was removed", LEFT, deletion(LEFT, Role.LEARNER)),
        case("of a learner whose pod was removed at the end", LEFT, stage=Stage.COMPLETE, lingering=True),
        case("of workers that their learner let go", LEARNS.ended("Complete")),
        case("which the next learner needs", LEARNS.ended("Complete"), deletion(LEARNS), again=True),
        case("that runs for the next learner", LEARNS, again=True),
        case("of no learner", EVALUATED.edited(learner=None), deletion(EVALUATED, Role.LEARNER)),
        case("of no evaluation", EVALUATED.edited(evaluation=None), deletion(EVALUATED, Role.EVALUATION)),
    ],
)
def test_plan_for_a_run(found: Scene, stage: Stage, options: Any, actions: list[Any]) -> None:
    assert sorted(planned(found, stage, **options), key=str) == actions


@pytest.mark.parametrize(("before", "after"), [(QUEUE, OTHERS), (QUEUE, {}), ({}, QUEUE)])
def test_other_labels_for_a_scheduler_make_a_new_run(before: dict[str, str], after: dict[str, str]) -> None:
    first = scene(labels=before)
    created, deleted = planned(replace(first, job=scene(labels=after).job))
    assert {key: value for key, value in created.manifest["metadata"]["labels"].items() if "kueue" in key} == after
    assert deleted == deletion(first)


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("end", ["", "Complete", "Failed"])
@pytest.mark.parametrize("labels", [{}, QUEUE])
def test_suspended_job_has_no_runs(labels: dict[str, str], end: str, blocked: bool) -> None:
    before = scene(learner=LEARNER, labels=labels)
    before = before.ended(end) if end else before
    suspended = before.edited(suspend=True)
    deleted = planned(suspended, blocked=blocked)
    assert sorted(deleted, key=str) == both_deletions(before)
    without = replace(suspended, children=tuple(each for each in before.children if each["kind"] != "Job"))
    assert planned(without, blocked=blocked) == []


def test_changed_template_makes_a_new_run_before_the_old_one_goes() -> None:
    before = scene(image="a:1")
    created, deleted = planned(before.edited(image="a:2"))
    assert isinstance(created, Apply)
    assert deleted == deletion(before)
    assert run_ref(before) != ref(created.manifest)


def test_pod_that_others_of_its_containers_keep_ends_with_its_own() -> None:
    """Unless it is a worker that exited with 0, which Kubernetes would start again."""
    beside: Any = {"phase": "Running", "beside": {"running": {}}}
    before = scene(learner=LEARNER)
    for code, role, ends in ((1, Role.WORKER, 1), (0, Role.WORKER, 0), (1, Role.LEARNER, 1), (0, Role.LEARNER, 1)):
        found = before.exited(code, role=role, **beside)
        end = Change(Ref("Pod", found.pods[0]["metadata"]["name"]), {"spec": {"activeDeadlineSeconds": 1}})
        assert planned(found, Stage.COMPLETE, lingering=True) == [end] * ends
    failed = before.exited(phase="Failed", reason="DeadlineExceeded")
    failed.pods[0]["spec"] |= {"activeDeadlineSeconds": 1}
    assert planned(failed, Stage.COMPLETE, lingering=True) == [Change(run_ref(before, Role.LEARNER), SUSPEND)]

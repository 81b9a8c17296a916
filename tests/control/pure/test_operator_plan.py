"""Tests of plan(): actions from desired and observed state."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest, Ref, overlay, ref
from rollfleet_operator.plan import Action, Apply, Change, Delete, label_changes, plan, shrinks, starts

if TYPE_CHECKING:
    from tests.control.pure.scene import Scene

MakeScene = Callable[..., "Scene"]
Want = Callable[..., dict[Ref, Manifest]]
NOTED = {"annotations": {names.SUSPEND: "false"}}


@pytest.fixture
def planned(want: Want) -> Callable[..., list[Action]]:
    """What is to be done in a scene."""

    def build(scene: "Scene", *, stopped: bool = False, queued: bool = False, **options: Any) -> list[Action]:
        wanted = list(want(scene.job, stopped=stopped, queued=queued).values())
        return [*plan(wanted, scene.observed, **options), *label_changes(wanted, scene.observed)]

    return build


def drifted(scene: "Scene", which: Ref, change: Manifest) -> "Scene":
    children = tuple(overlay(child, change) if ref(child) == which else child for child in scene.children)
    return replace(scene, children=children)


def run_ref(scene: "Scene", role: Role = Role.WORKER) -> Ref:
    return ref(scene.run(role))


def test_new_job_gets_everything_with_what_pods_need_first(scene: MakeScene, planned: Any) -> None:
    actions = planned(replace(scene(), children=()))
    assert all(isinstance(action, Apply) and action.new for action in actions)
    assert [action.manifest["kind"] for action in actions][-1] == "Job"


def test_nothing_is_done_if_all_is_as_desired(scene: MakeScene, planned: Any) -> None:
    assert planned(scene()) == []


def test_additions_of_the_api_server_and_others_are_left_alone(scene: MakeScene, planned: Any) -> None:
    before = scene()
    for child in before.children:
        before = drifted(before, ref(child), {"metadata": {"labels": {"theirs": "1"}}, "status": {"seen": True}})
    assert planned(before) == []


def test_changed_field_is_repaired(scene: MakeScene, planned: Any) -> None:
    policy = Ref("NetworkPolicy", names.network_policy("cartpole", Role.WORKER))
    (action,) = planned(drifted(scene(), policy, {"spec": {"policyTypes": ["Ingress"]}}))
    assert isinstance(action, Apply)
    assert (ref(action.manifest), action.new) == (policy, False)


def test_field_that_is_no_longer_wanted_is_removed(scene: MakeScene, planned: Any) -> None:
    account = Ref("ServiceAccount", names.account("cartpole"))
    (action,) = planned(drifted(scene(), account, {"metadata": {"annotations": {names.APPLIED: "of an earlier one"}}}))
    assert isinstance(action, Apply)


def test_scaling_changes_completions_and_parallelism_together(scene: MakeScene, planned: Any) -> None:
    (action,) = planned(scene(workers=2).edited(workers=4))
    assert isinstance(action, Change)
    assert action.patch["spec"]["completions"] == action.patch["spec"]["parallelism"] == 4


@pytest.mark.parametrize(("workers", "fewer"), [(1, True), (3, False)])
def test_removal_of_workers_is_known_before_it_is_published(
    scene: MakeScene, planned: Any, workers: int, fewer: bool
) -> None:
    after = scene(workers=2).edited(workers=workers)
    assert shrinks(planned(after), after.observed) is fewer


@pytest.mark.parametrize(
    ("before", "edit", "start"),
    [
        ({}, {"workers": 3}, True),
        ({}, {"image": "a:2"}, True),
        ({"suspend": True}, {"suspend": False}, True),
        ({}, {"suspend": True}, False),
        ({}, {"suspend": True, "workers": 3}, False),
        ({"suspend": True}, {"image": "a:2"}, False),
        ({}, {"collect": {"totalFrames": 1000}}, False),
    ],
    ids=str,
)
def test_starting_pods_need_the_job_on_nats(
    scene: MakeScene, planned: Any, before: dict[str, Any], edit: dict[str, Any], start: bool
) -> None:
    after = scene(**before).edited(**edit)
    assert starts(planned(after), after.observed) is start


def test_template_of_a_run_is_never_rewritten(scene: MakeScene, planned: Any) -> None:
    # The API server refuses it, and a new operator's template may differ.
    before = scene()
    assert planned(drifted(before, run_ref(before), {"spec": {"template": {"spec": {"hostname": "x"}}}})) == []


def test_suspended_by_hand_is_resumed(scene: MakeScene, planned: Any) -> None:
    before = scene()
    (action,) = planned(drifted(before, run_ref(before), {"spec": {"suspend": True}}))
    assert isinstance(action, Change)
    assert action.patch["spec"]["suspend"] is False


def test_removed_label_of_a_run_is_restored(scene: MakeScene, planned: Any) -> None:
    before = scene()
    (action,) = planned(drifted(before, run_ref(before), {"metadata": {"labels": {names.ROLE: None}}}))
    assert isinstance(action, Change)
    assert action.patch["metadata"]["labels"][names.ROLE] == Role.WORKER


def test_kueue_suspends_and_resumes_undisturbed(scene: MakeScene, planned: Any) -> None:
    before = scene(labels={"kueue.x-k8s.io/queue-name": "gpus"})
    assert planned(drifted(before, run_ref(before), {"spec": {"suspend": True}})) == []


def test_job_that_leaves_its_queue_is_released_by_kueue(scene: MakeScene, planned: Any) -> None:
    queue = {"kueue.x-k8s.io/queue-name": "gpus"}
    before, after = scene(labels=queue), scene()
    suspended = drifted(before, run_ref(before), {"spec": {"suspend": True}})
    (released,) = planned(replace(suspended, job=after.job))
    assert isinstance(released, Change)
    assert released.patch["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] is None
    left = drifted(replace(suspended, job=after.job), run_ref(before), released.patch)
    assert not left.observed.runs[0].queued
    (resumed,) = planned(left)
    assert (resumed.patch["spec"]["suspend"], resumed.patch["metadata"]) == (False, NOTED)
    held = drifted(drifted(left, run_ref(before), resumed.patch), run_ref(before), {"spec": {"suspend": True}})
    assert held.observed.runs[0].queued


def test_running_job_is_scaled_before_its_labels_change(scene: MakeScene, planned: Any) -> None:
    before = scene(labels={"kueue.x-k8s.io/queue-name": "gpus"}, workers=3)
    after = scene(labels={"kueue.x-k8s.io/queue-name": "others"}, workers=1)
    scaled, labelled = planned(replace(before, job=after.job))
    assert scaled.patch == {"spec": {"completions": 1, "parallelism": 1}}
    assert labelled.patch["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "others"
    assert "spec" not in labelled.patch


def test_queue_of_another_client_is_left_alone(scene: MakeScene, planned: Any) -> None:
    before = scene()
    theirs = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "default"}}, "spec": {"suspend": True}}
    defaulted = drifted(before, run_ref(before), theirs)
    assert defaulted.observed.runs[0].queued
    assert planned(defaulted, queued=True) == []


def test_run_that_another_client_suspended_is_left_alone(scene: MakeScene, planned: Any) -> None:
    before = scene()
    suspended = drifted(before, run_ref(before), {"spec": {"suspend": True}})
    assert suspended.observed.runs[0].queued
    assert planned(suspended, queued=True) == []


def test_run_that_the_operator_suspended_is_resumed(scene: MakeScene, planned: Any) -> None:
    before = scene(suspend=True)
    assert not before.observed.runs[0].queued
    (action,) = planned(before.edited(suspend=False))
    assert (action.patch["spec"]["suspend"], action.patch["metadata"]) == (False, NOTED)


def test_run_that_an_earlier_operator_suspended_is_resumed(scene: MakeScene, planned: Any) -> None:
    before = scene()
    change = {"metadata": {"annotations": {names.SUSPEND: None}}, "spec": {"suspend": True}}
    earlier = drifted(before, run_ref(before), change)
    assert not earlier.observed.runs[0].queued
    (action,) = planned(earlier)
    assert (action.patch["spec"]["suspend"], action.patch["metadata"]) == (False, NOTED)


def test_stopped_run_in_the_queue_of_another_client_is_deleted(scene: MakeScene, planned: Any) -> None:
    before = scene()
    defaulted = drifted(before, run_ref(before), {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "default"}}})
    (action,) = planned(defaulted.edited(suspend=True), queued=True)
    assert action == Delete(run_ref(before), before.run()["metadata"]["uid"])


def test_queue_is_noted_in_a_run_of_an_earlier_operator(scene: MakeScene, planned: Any) -> None:
    before = scene(labels={"kueue.x-k8s.io/queue-name": "gpus"})
    old = drifted(before, run_ref(before), {"metadata": {"annotations": {names.QUEUE: None}}})
    (action,) = planned(old)
    assert action.patch == {"metadata": {"annotations": {names.QUEUE: "gpus"}}}


def test_earlier_run_is_suspended_before_its_successor_is_created(scene: MakeScene, planned: Any) -> None:
    before = scene(image="a:1")
    suspended, created, deleted = planned(before.edited(image="a:2", suspend=True))
    assert isinstance(suspended, Change)
    assert (suspended.ref, suspended.patch["spec"]["suspend"]) == (run_ref(before), True)
    assert isinstance(created, Apply)
    assert isinstance(deleted, Delete)


def test_changed_template_makes_a_new_run_before_the_old_one_goes(scene: MakeScene, planned: Any) -> None:
    before = scene(image="a:1")
    created, deleted = planned(before.edited(image="a:2"))
    assert isinstance(created, Apply)
    assert isinstance(deleted, Delete)
    assert deleted.ref == run_ref(before) != ref(created.manifest)


def test_run_in_deletion_is_waited_for(scene: MakeScene, planned: Any) -> None:
    before = scene()
    leaving = {"metadata": {"deletionTimestamp": "2026-11-21T00:00:00Z"}}
    assert planned(drifted(before, run_ref(before), leaving).edited(workers=7)) == []


def test_finished_run_is_left_alone(scene: MakeScene, planned: Any) -> None:
    assert planned(scene().ended("Complete").edited(workers=5)) == []


def test_finished_run_is_deleted_if_it_is_to_start_again(scene: MakeScene, planned: Any) -> None:
    before = scene().ended("Complete")
    (run,) = before.observed.runs
    (action,) = planned(before, again=run)
    assert isinstance(action, Delete)
    assert action.ref == run_ref(before)


def test_failed_run_is_deleted_on_a_retry(scene: MakeScene, planned: Any) -> None:
    before = scene().ended("Failed")
    (action,) = planned(before, stopped=True, retry=True)
    assert action == Delete(run_ref(before), before.run()["metadata"]["uid"])


def test_learner_that_is_no_longer_wanted_is_deleted(scene: MakeScene, planned: Any) -> None:
    before = scene(learner={"template": {}})
    (action,) = planned(before.edited(learner=None))
    assert isinstance(action, Delete)
    assert action.ref == run_ref(before, Role.LEARNER)


def test_ended_job_creates_no_run(scene: MakeScene, planned: Any) -> None:
    before = scene()
    without_runs = replace(before, children=tuple(each for each in before.children if each["kind"] != "Job"))
    assert planned(without_runs, ended=True) == []


def test_fields_of_other_managers_stay(scene: MakeScene, planned: Any) -> None:
    theirs = {"kind": "ConfigMap", "metadata": {"name": "notes", "uid": "1", "labels": {}}}
    before = scene()
    assert planned(replace(before, children=(*before.children, theirs))) == []

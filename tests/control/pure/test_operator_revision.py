"""Revisions: the changes that restart workers or the learner."""

from typing import Any

import pytest
from tests.control.pure.scene import a_job

from rollfleet_operator.revision import learner_revision, workers_revision


def learner(**container: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "learner", **container}]}}}


LEARNER = learner(image="train:1")


@pytest.mark.parametrize("mode", ["Sync", "Async"])
@pytest.mark.parametrize(
    ("edit", "rolls_workers", "restarts_learner"),
    [
        ({"env": {"id": "Pendulum-v1"}}, True, True),
        ({"env": {"kwargs": {"gravity": 9.8}}}, True, True),
        ({"policy": {"mlp": {"hidden": [8]}}}, True, True),
        ({"source": {"configMap": "code"}}, True, True),
        ({"weights": {"precision": "bfloat16"}}, True, True),
        ({"collect": {"trajsPerBatch": 8, "trajFormat": "Cat"}}, True, True),
        ({"image": "other:2"}, True, False),
        ({"collect": {"seed": 7}}, True, False),
        ({"collect": {"framesPerBatch": 128}}, True, False),
        ({"resources": {"gpu": {"count": 1}}}, True, False),
        ({"template": {"spec": {"nodeSelector": {"a": "b"}}}}, True, False),
        ({"weights": {"maxLag": 3}}, True, False),
        ({"failure": {"maxRestartsPerWorker": 3}}, True, False),
        ({"mode": "Sync", "stragglers": {"threshold": 0.5}}, True, False),
        ({"learner": LEARNER}, False, False),
        ({"learner": learner(image="train:2")}, False, True),
        ({"learner": learner(image="train:1", resources={"limits": {"cpu": "2"}})}, False, True),
        ({"workers": 8}, False, False),  # nor in mode Sync: the learner sends each round's steps
        ({"suspend": True}, False, False),
        ({"ttlSecondsAfterFinished": 5}, False, False),
        ({"collect": {"totalFrames": 1000}}, False, False),
        ({"collect": {"initRandomFrames": 1000}}, False, False),
        ({"weights": {"interval": 4}}, False, False),
        ({"delivery": {"maxBatchesAhead": 2}}, False, False),
        ({"failure": {"pendingDeadlineSeconds": 5}}, False, False),
        ({"failure": {"suspectAfterSeconds": 60}}, False, False),
        ({"nats": {"resources": {"limits": {"memory": "2Gi"}}, "service": "LoadBalancer"}}, False, False),
        ({"autoscale": {"maxWorkers": 8}}, False, False),
        ({"collect": {"seed": 0}, "weights": {"interval": 1}, "resources": {"gpu": {"count": 0}}}, False, False),
    ],
    ids=str,
)
def test_edit_restarts(mode: str, edit: dict[str, Any], rolls_workers: bool, restarts_learner: bool) -> None:
    before = {"mode": edit.get("mode", mode)}
    after = before | edit
    assert (workers_revision(a_job(**after)) != workers_revision(a_job(**before))) == rolls_workers
    trained, edited = a_job(learner=LEARNER, **before), a_job(**{"learner": LEARNER} | after)
    assert (learner_revision(edited) != learner_revision(trained)) == restarts_learner


def test_changed_source_files_roll_the_workers() -> None:
    assert workers_revision(a_job(), "one") != workers_revision(a_job(), "other")


def test_revisions_stay_what_they_are() -> None:
    # A changed hash would restart all workers of all clusters on the day of an upgrade: it must never happen unnoticed.
    assert (workers_revision(a_job()), learner_revision(a_job(learner=LEARNER))) == ("02e1924d", "9e4b2e9b")


@pytest.mark.parametrize(
    ("template", "takes_it"),
    [({}, True), (learner()["template"], True), (LEARNER["template"], False)],
    ids=["no container", "no image", "an image of its own"],
)
def test_image_of_the_workers_restarts_a_learner_that_takes_it(template: dict[str, Any], takes_it: bool) -> None:
    images = (None, "a:1", "a:2")
    revisions = {learner_revision(a_job(learner={"template": template}, image=image)) for image in images}
    assert len(revisions) == (3 if takes_it else 1)

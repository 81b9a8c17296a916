"""Revisions: the changes that restart workers or the learner."""

from typing import Any

import pytest
from tests.control.pure.scene import a_job

from rollfleet_operator.revision import learner_revision, workers_revision

LEARNER = {"template": {"spec": {"containers": [{"name": "learner", "image": "train:1"}]}}}


@pytest.mark.parametrize(
    "edit",
    [
        {"image": "other:2"},
        {"env": {"id": "Pendulum-v1"}},
        {"env": {"kwargs": {"gravity": 9.8}}},
        {"policy": {"mlp": {"hidden": [8]}}},
        {"collect": {"seed": 7}},
        {"collect": {"framesPerBatch": 128}},
        {"resources": {"gpu": {"count": 1}}},
        {"template": {"spec": {"nodeSelector": {"a": "b"}}}},
        {"weights": {"maxLag": 3}},
        {"source": {"configMap": "code"}},
        {"failure": {"maxRestartsPerWorker": 3}},
    ],
    ids=str,
)
def test_edit_rolls_the_workers(edit: dict[str, Any]) -> None:
    assert workers_revision(a_job(**edit)) != workers_revision(a_job())


@pytest.mark.parametrize(
    "edit",
    [
        {"workers": 8},
        {"suspend": True},
        {"ttlSecondsAfterFinished": 5},
        {"collect": {"totalFrames": 1000}},
        {"collect": {"initRandomFrames": 1000}},
        {"weights": {"interval": 4}},
        {"delivery": {"maxBatchesAhead": 2}},
        {"failure": {"pendingDeadlineSeconds": 5}},
        {"failure": {"suspectAfterSeconds": 60}},
        {"learner": LEARNER},
        {"nats": {"resources": {"limits": {"memory": "2Gi"}}, "service": "LoadBalancer"}},
        {"autoscale": {"maxWorkers": 8}},
        {"collect": {"seed": 0}, "weights": {"interval": 1}, "resources": {"gpu": {"count": 0}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_edit_restarts_no_worker(mode: str, edit: dict[str, Any]) -> None:
    # Nor does another number in mode Sync: the learner sends each round's steps.
    assert workers_revision(a_job(mode=mode, **edit)) == workers_revision(a_job(mode=mode))


def test_changed_source_files_roll_the_workers() -> None:
    assert workers_revision(a_job(), "one") != workers_revision(a_job(), "other")


def test_revisions_stay_what_they_are() -> None:
    # A changed hash would restart all workers of all clusters on the day of an upgrade: it must never happen unnoticed.
    assert (workers_revision(a_job()), learner_revision(a_job(learner=LEARNER))) == ("02e1924d", "9e4b2e9b")


@pytest.mark.parametrize(
    "edit",
    [
        {"learner": {"template": {"spec": {"containers": [{"name": "learner", "image": "train:2"}]}}}},
        {
            "learner": {
                "template": {"spec": {"containers": [{"name": "learner", "resources": {"limits": {"cpu": "2"}}}]}}
            }
        },
        {"env": {"id": "Pendulum-v1"}},
        {"policy": {"mlp": {"hidden": [8]}}},
        {"source": {"configMap": "code"}},
        {"weights": {"precision": "bfloat16"}},
        {"collect": {"trajsPerBatch": 8, "trajFormat": "Cat"}},
    ],
    ids=str,
)
def test_edit_restarts_the_learner(edit: dict[str, Any]) -> None:
    assert learner_revision(a_job(**{"learner": LEARNER} | edit)) != learner_revision(a_job(learner=LEARNER))


@pytest.mark.parametrize(
    "edit",
    [
        {"collect": {"totalFrames": 1000}},
        {"collect": {"framesPerBatch": 128, "seed": 7}},
        {"weights": {"interval": 4, "maxLag": 3}},
        {"mode": "Sync", "stragglers": {"threshold": 0.5}},
        {"failure": {"suspectAfterSeconds": 60, "maxRestartsPerWorker": 3}},
        {"workers": 9, "delivery": {"maxBatchesAhead": 2}},
    ],
    ids=str,
)
def test_edit_reaches_the_learner_that_runs(edit: dict[str, Any]) -> None:
    spec = {"mode": edit.pop("mode", "Async"), "learner": LEARNER}
    assert learner_revision(a_job(**spec | edit)) == learner_revision(a_job(**spec))


@pytest.mark.parametrize(
    ("template", "takes_it"),
    [({}, True), ({"spec": {"containers": [{"name": "learner"}]}}, True), (LEARNER["template"], False)],
    ids=["no container", "no image", "an image of its own"],
)
def test_image_of_the_workers_restarts_a_learner_that_takes_it(template: dict[str, Any], takes_it: bool) -> None:
    images = (None, "a:1", "a:2")
    revisions = {learner_revision(a_job(learner={"template": template}, image=image)) for image in images}
    assert len(revisions) == (3 if takes_it else 1)

"""Why pods cannot be created: the API server is asked only while none comes, because the question is expensive."""

import asyncio
from typing import Any

import pytest
from tests.control.pure.scene import Scene, scene

from rollfleet_api.times import format_time
from rollfleet_operator.api import Api
from rollfleet_operator.apply import problem_of
from rollfleet_operator.cache import Cache
from rollfleet_operator.cluster_reader import ClusterReader
from rollfleet_operator.errors import ApiError
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.manifest import Manifest

LEAST_S = 5.0
QUOTA = 'pods "x" is forbidden: exceeded quota: gpus'


class Events(Api):
    """An API server with one event, which counts the questions."""

    def __init__(self) -> None:
        self.asked, self.reported_s = 0, 0.0

    async def list(self, kind: str, *_: Any, **__: Any) -> list[Manifest]:
        assert kind == "Event"
        self.asked += 1
        reported = format_time(self.reported_s)
        times = {"lastTimestamp": reported, "metadata": {"creationTimestamp": reported}}
        return [{**times, "message": f"Error creating: {QUOTA}"}]


class Asked:
    """A reader of the cluster, and its memory of the job of a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.events, self.cache, self.memory = scene, Events(), Cache(), JobMemory()
        self.memory.source_digest = ""
        self.put(scene)

    def put(self, scene: Scene) -> None:
        self.scene = scene
        for version, manifest in enumerate((*scene.children, *scene.pods), start=1):
            if manifest["kind"] in ("Job", "Pod"):
                metadata = {**manifest["metadata"], "resourceVersion": str(version)}
                self.cache.put({**manifest, "metadata": metadata})

    def after(self, seconds: float) -> str:
        """Read, some seconds after the start of the scene, why pods are refused."""
        reader, now_s = ClusterReader(self.events, self.cache), self.scene.now_s + seconds
        asyncio.run(reader.read_refusals(self.scene.job, self.memory, now_s, LEAST_S))
        return self.memory.refusal.message


@pytest.fixture
def asked() -> Asked:
    return Asked(scene(workers=100))


def test_job_whose_pods_come_asks_nothing(asked: Asked) -> None:
    assert asked.after(0) == ""
    for second in range(1, 60, 2):
        asked.put(asked.scene.pod(second, age_s=-second))
        assert asked.after(second + 1) == ""
    assert asked.events.asked == 0


def test_refusal_is_known_once_no_pod_has_come_for_a_while_until_one_comes(asked: Asked) -> None:
    asked.events.reported_s = asked.scene.now_s
    assert [asked.after(seconds) for seconds in (0, 4, 5)] == ["", "", QUOTA]
    asked.put(asked.scene.pod(0, age_s=-8))
    assert asked.after(9) == ""


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (
            500,
            'failed to create typed patch object (a/b): .spec.env[name="X"].value: expected string',
            "TemplateInvalid",
        ),
        (500, "failed to convert new object (a/b) to proper version: quantities must match", "TemplateInvalid"),
        (422, "jobs.batch is forbidden: ValidatingAdmissionPolicy 'p' denied request: no label", "Forbidden"),
        (400, 'admission webhook "w" denied the request: no label', "PodsRefused"),
        (422, "Job.batch is invalid: spec.a: Forbidden: may not be set", "Invalid"),
        (500, "etcdserver: request timed out", "ApiError"),
    ],
)
def test_refusal_of_an_object_is_named_by_what_the_api_server_says(status: int, message: str, reason: str) -> None:
    assert problem_of(ApiError(status, "", message)).reason == reason


def test_job_that_waits_for_an_hour_asks_once_a_minute(asked: Asked) -> None:
    for second in range(3600):
        asked.after(second)
    assert 60 <= asked.events.asked < 80

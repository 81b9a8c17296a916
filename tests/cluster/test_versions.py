"""The chart and its operator go to the version before, and back, under a job that runs: `BEFORE` names its source."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cluster.lab import Release

if TYPE_CHECKING:
    from tests.cluster.lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

Install = Callable[[str], None]


@pytest.fixture
def install(release: Release) -> Iterator[Install]:
    """Installs a version of the chart, `before` or `now`, over the other one."""
    folder, tag = os.environ.get("BEFORE"), os.environ["TAG"]
    if not folder:
        pytest.skip("needs the version before: its source in the folder BEFORE, its operator's image at $TAG-before")
    earlier = Release(Path(folder) / "charts/rollfleet")

    def install(version: str) -> None:
        if version == "now":
            release.install()
        else:
            earlier.helm("upgrade", f"--set=operator.image.tag={tag}-before")

    yield install
    release.install()


@pytest.mark.parametrize(("first", "then"), [("before", "now"), ("now", "before")], ids=["upgrade", "downgrade"])
def test_a_job_outlives_another_version_of_the_operator_which_takes_its_edits(
    first: str, then: str, lab: "Lab", release: Release, install: Install, counting: dict[str, Any]
) -> None:
    install(first)
    lab.apply(counting)
    lab.wait_for_workers("counting", 2)
    frames = lab.wait_for_frames("counting", more_than=10_000)["frames"]
    pods, operator = pods_of(lab), operators(release)

    install(then)
    assert not operators(release) & operator
    frames = lab.wait_for_frames("counting", more_than=frames + 50 * 512)["frames"]
    assert pods_of(lab) == pods

    lab.kubectl("scale", "collectorjob/counting", "--replicas=3")
    lab.wait_for_workers("counting", 3)
    lab.wait_for_frames("counting", more_than=frames + 50 * 512)
    assert pods_of(lab) > pods
    assert lab.condition("counting", "Degraded")["status"] == "False"
    assert lab.missed() == 0


def operators(release: Release) -> set[str]:
    selector = "--selector=app.kubernetes.io/component=operator"
    return set(release.kubectl("get", "pods", selector, "--output=jsonpath={.items[*].metadata.uid}").split())


def pods_of(lab: "Lab") -> set[str]:
    return {pod["metadata"]["uid"] for role in ("worker", "learner") for pod in lab.pods(role)}

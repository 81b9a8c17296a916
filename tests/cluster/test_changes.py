"""A job that is changed while it runs. One job for all of these tests; each leaves two workers that collect."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.lab import Lab, Release, counting_job
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NAME = "counting"


@pytest.fixture(scope="module")
def running(release: Release, repository: Path) -> Iterator[Lab]:
    """The job, with two workers that collect."""
    lab = Lab(release)
    lab.apply(counting_job(lab, repository))
    lab.wait_for_workers(NAME, 2)
    collects(lab)
    yield lab
    lab.remove()


def collects(lab: Lab) -> dict[str, Any]:
    """Wait until the learner took some more batches; the status that says so."""
    frames = lab.status(NAME).get("frames", 0)
    return lab.wait_for_frames(NAME, more_than=frames + 5 * 512)


def environments(lab: Lab) -> list[int]:
    """The numbers of environments in the learner's batches so far."""
    return [int(count) for count in re.findall(r"frames, (\d+) environments", lab.logs("learner"))]


def wait_for_batches_of(workers: int, lab: Lab) -> None:
    """A batch of a Sync job holds what all of its workers have collected, four environments each."""
    wait_until(lambda: environments(lab)[-1] == 4 * workers, timeout_s=120)


def test_two_workers_become_four_and_one_while_the_same_learner_iterates(running: Lab) -> None:
    learner, settings = running.uids("learner"), running.status(NAME)["envVersion"]
    for count in (4, 1, 2):
        staying = running.uids("worker")
        running.kubectl("scale", f"collectorjob/{NAME}", f"--replicas={count}")
        running.wait_for_workers(NAME, count)
        wait_for_batches_of(count, running)
        now = running.uids("worker")
        assert now <= staying or staying <= now, "who was there and is still wanted was not restarted"
    assert running.uids("learner") == learner
    assert running.status(NAME)["envVersion"] == settings
    assert {*environments(running)} <= {4, 8, 12, 16}  # one that is added may take part a round before another


def test_a_suspended_job_has_no_pods_and_goes_on_with_the_next_version(running: Lab) -> None:
    running.patch(NAME, suspend=True)
    running.kubectl("wait", "--for=delete", "pods", "--all", "--timeout=120s")
    running.kubectl("wait", f"collectorjob/{NAME}", "--for=condition=Suspended", "--timeout=30s")
    before = running.status(NAME)
    assert (before["phase"], before["gpus"], before["workers"]["desired"]) == ("Suspended", 0, 0)

    running.patch(NAME, suspend=False)
    running.wait_for_workers(NAME, 2)
    after = collects(running)
    assert after["publishedVersion"] > before["publishedVersion"]
    result = re.search(r"connected at version (\d+) and (\d+) frames", running.logs("learner"))
    assert result
    assert int(result[1]) >= before["publishedVersion"]
    assert int(result[2]) >= before["frames"]


def test_another_image_brings_other_pods_and_a_template_other_workers_to_the_same_learner(running: Lab) -> None:
    def change(**changes: Any) -> tuple[set[str], set[str]]:
        """Edit the job, wait for other workers, and return the UIDs of its learner's pods before and after."""
        learner, workers = running.uids("learner"), running.uids("worker")
        running.patch(NAME, **changes)
        running.wait_until(NAME, lambda _: not workers & running.uids("worker"), "other pods")
        running.wait_for_workers(NAME, 2)
        collects(running)
        return learner, running.uids("learner")

    # What runs already, under its name: another image to the job, and to its learner, which has none of its own.
    before, after = change(image=running.release.worker_image)
    assert not before & after
    before, after = change(template={"metadata": {"annotations": {"changed": "true"}}})
    assert before == after
    for pod in running.pods("worker"):
        assert pod["spec"]["containers"][0]["image"] == running.release.worker_image
        assert pod["metadata"]["annotations"]["changed"] == "true"


def test_the_learner_that_runs_follows_the_interval_and_the_total_of_frames(lab: Lab, counting: dict[str, Any]) -> None:
    lab.apply(counting)
    frames = lab.wait_for_frames(NAME, more_than=5 * 512)["frames"]
    (pod,) = lab.pods("learner")
    lab.patch(NAME, weights={"interval": 1000})
    before = lab.wait_for_frames(NAME, more_than=frames + 20 * 512)
    after = lab.wait_for_frames(NAME, more_than=before["frames"] + 50 * 512)
    assert after["publishedVersion"] == before["publishedVersion"]
    total = after["frames"] + 10 * 512
    lab.patch(NAME, collect={"totalFrames": total})
    lab.kubectl("wait", f"collectorjob/{NAME}", "--for=condition=Complete", "--timeout=120s")
    assert lab.status(NAME)["frames"] == total
    assert [each["metadata"]["uid"] for each in lab.pods("learner")] == [pod["metadata"]["uid"]]

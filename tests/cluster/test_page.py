"""`kubectl rollfleet ui` on a whole cluster, as a user who may read one namespace."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.lab import Lab, Release, counting_job, user, wait_for
from tests.running import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


class Page:
    """The page in a browser that opened the printed URL."""

    def __init__(self, url: str) -> None:
        self._base = url.partition("/?")[0]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with self._opener.open(url, timeout=30) as answer:
            self.index = answer.read().decode()

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with self._opener.open(f"{self._base}/api/v1{path}", timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.fixture
def kubeconfig(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of a user of the lab's namespace who may reach the page."""
    path = tmp_path / "kubeconfig"
    with user(lab, "alice", path, role="rollfleet-ui"):
        yield path


@pytest.fixture
def page(release: Release, kubeconfig: Path) -> Iterator[Page]:
    """The page, as the command opens it."""
    options = [f"--namespace={release.namespace}", f"--kubeconfig={kubeconfig}"]
    with running(sys.executable, "-m", "rollfleet", "ui", *options, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        line = program.stdout.readline()
        yield Page(line.partition(": ")[2].strip())
        program.terminate()
        assert program.wait(30) == 143  # SIGTERM


@pytest.fixture
def theirs(release: Release, repository: Path) -> Iterator[Lab]:
    """Another namespace, with a suspended job."""
    theirs = Lab(release)
    job = counting_job(theirs, repository)
    job["spec"]["suspend"] = True
    theirs.apply(job)
    yield theirs
    theirs.remove()


def test_a_user_watches_the_jobs_of_one_namespace(
    lab: Lab, theirs: Lab, page: Page, release: Release, counting: dict[str, Any]
) -> None:
    assert "<html" in page.index
    lab.apply(counting)
    key = f"{lab.namespace}/counting"
    lab.wait_for_frames("counting", more_than=0)
    wait_for(lambda: [row["key"] for row in page.get("/jobs")[1]] == [key])
    assert page.get(f"/jobs/{theirs.namespace}/counting")[0] == 403

    frames = page.get(f"/jobs/{key}")[1]["row"]["frames"]
    wait_for(lambda: page.get(f"/jobs/{key}")[1]["row"]["frames"] > frames)
    wait_for(lambda: page.get(f"/jobs/{key}")[1]["row"]["diagnosis"]["state"] == lab.status("counting")["phase"])
    *workers, learner = page.get(f"/jobs/{key}/workers")[1]
    assert [each["index"] for each in workers] == [0, 1]
    assert all(each["node"] and each["state"] != "Pending" for each in workers)
    assert learner["index"] is None
    status, log = page.get(f"/jobs/{key}/logs?worker=learner&tail=5")
    assert status == 200, log
    assert "environments" in log["text"]

    pod = lab.pods("worker")[0]["metadata"]["name"]
    lab.kubectl("delete", "pod", pod, "--wait=false")
    wait_for(lambda: {"WorkerEnded", "WorkerBack"} <= kinds(page, key))

    lab.patch("counting", workers=3)
    wait_for(lambda: "Scaled" in kinds(page, key))
    before = page.get(f"/jobs/{key}/history")[1]["time"]
    release.kubectl("rollout", "restart", "deployment/rollfleet")
    release.kubectl("rollout", "status", "deployment/rollfleet", "--timeout=120s")
    wait_for(lambda: page.get("/jobs")[0] == 200)
    wait_for(lambda: page.get(f"/jobs/{key}/history")[1].get("time", [])[-1:] > before[-1:])  # it began again
    assert "Created" in kinds(page, key)

    lab.kubectl("delete", "collectorjob/counting", "--timeout=60s")
    wait_for(lambda: page.get(f"/jobs/{key}")[0] == 404)
    assert page.get("/jobs")[1] == []


def kinds(page: Page, key: str) -> set[str]:
    return {each["kind"] for each in page.get(f"/jobs/{key}/timeline")[1]}

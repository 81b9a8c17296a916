"""`kubectl rollfleet ui` on a whole cluster, as a user who may read one namespace."""

import json
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.lab import Lab, user
from tests.running import running
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_a_user_watches_the_jobs_of_one_namespace(lab: Lab, counting: dict[str, Any], tmp_path: Path) -> None:
    kubeconfig, key = tmp_path / "kubeconfig", f"{lab.namespace}/counting"
    options = [f"--namespace={lab.release.namespace}", f"--kubeconfig={kubeconfig}"]
    lab.apply(counting)
    lab.wait_for_frames("counting", more_than=0)
    with (
        user(lab, "alice", kubeconfig, role="rollfleet-ui"),
        running(sys.executable, "-m", "rollfleet", "ui", *options, stdout=subprocess.PIPE) as program,
    ):
        assert program.stdout is not None
        url = program.stdout.readline().partition(": ")[2].strip()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(url, timeout=30) as answer:
            assert "<html" in answer.read().decode()

        def get(path: str) -> Any:
            with browser.open(f"{url.partition('/?')[0]}/api/v1/jobs{path}", timeout=60) as answer:
                return json.loads(answer.read())

        wait_until(lambda: [row["key"] for row in get("")] == [key])
        frames = get(f"/{key}")["row"]["frames"]
        wait_until(lambda: get(f"/{key}")["row"]["frames"] > frames)
        *workers, learner = get(f"/{key}/workers")
        assert [each["index"] for each in workers] == [0, 1]
        assert all(each["node"] and each["state"] != "Pending" for each in workers)
        assert learner["index"] is None
        assert "environments" in get(f"/{key}/logs?worker=learner&tail=5")["text"]
        program.terminate()
        assert program.wait(30) == 143  # SIGTERM

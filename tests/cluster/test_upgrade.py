"""Jobs under `helm upgrade` (another chart, operator, image for workers to come), and under the next installation."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.lab import Lab, Release, run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_an_upgrade_restarts_neither_workers_nor_learner_nor_nats(
    release: Release, lab: Lab, counting: dict[str, Any], repository: Path, tmp_path: Path
) -> None:
    lab.apply(counting)
    lab.wait_for_workers("counting", 2)
    frames = lab.wait_for_frames("counting", more_than=0)["frames"]
    operator, jobs = installed(release, "operator"), lab.uids("worker", "learner", "nats")

    chart = shutil.copytree(repository / "charts/rollfleet", tmp_path / "rollfleet")
    version = re.sub(r"(?m)^version: .*$", "version: 99.0.0", (chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(version)
    try:
        options = ["--reset-then-reuse-values", "--set=worker.image.tag=of-the-next-version", "--timeout=180s"]
        run("helm", "upgrade", "rollfleet", str(chart), f"--namespace={release.namespace}", "--wait", *options)
        lab.wait_for_frames("counting", more_than=frames + 50 * 512)
        assert not installed(release, "operator") & operator, "it is another one"
        assert lab.uids("worker", "learner", "nats") == jobs
    finally:
        release.install()


def test_new_installation_takes_over_the_jobs(release: Release, lab: Lab, counting: dict[str, Any]) -> None:
    counting["spec"]["suspend"] = True
    lab.apply(counting)
    lab.kubectl("wait", "collectorjob/counting", "--for=condition=Suspended", "--timeout=60s")
    release.uninstall()
    release.install()
    lab.patch("counting", suspend=False)
    lab.wait_for_frames("counting", more_than=0)


def installed(release: Release, component: str) -> set[str]:
    """The pods of a part of the installation, each by what no other ever has."""
    selector = f"--selector=app.kubernetes.io/component={component}"
    return set(release.kubectl("get", "pods", selector, "--output=jsonpath={.items[*].metadata.uid}").split())

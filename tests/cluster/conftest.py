"""The cluster, the installation and the jobs that tests share."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.lab import Lab, Release, counting_job, learner

ABSENT = "needs a cluster with our images: start Docker, and both come by themselves, or see `make e2e`"
NO_IMAGES = "needs our images on the cluster of KUBECONFIG: set IMAGES and TAG, as tests/cluster/run says"


@pytest.fixture(scope="package")
def cluster(repository: Path) -> Iterator[None]:
    """A whole cluster, which kubectl and helm find, and our images."""
    if os.environ.get("KUBECONFIG"):
        if not os.environ.get("IMAGES"):
            pytest.skip(NO_IMAGES)
        yield
        return
    if subprocess.run(["sh", "-c", "docker info"], capture_output=True).returncode:
        pytest.skip(ABSENT)
    scripts = repository / "tests/cluster"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHON", sys.executable)
        try:
            brought = subprocess.run([scripts / "up"], stdout=subprocess.PIPE, text=True, check=True)
            for line in brought.stdout.splitlines():
                name, _, value = line.removeprefix("export ").partition("=")
                patch.setenv(name, *shlex.split(value))
            yield
        finally:
            subprocess.run([scripts / "down"])


@pytest.fixture(scope="package")
def release(cluster: None, repository: Path) -> Iterator[Release]:
    """The chart, installed for all tests and uninstalled afterwards."""
    release = Release(repository / "charts/rollfleet")
    release.install()
    yield release
    release.uninstall()
    release.remove()


@pytest.fixture(autouse=True)
def no_restarts(request: pytest.FixtureRequest) -> Iterator[None]:
    """No container of the release is started again by itself during a test."""
    release = request.getfixturevalue("release") if "release" in request.fixturenames else None
    yield
    assert release is None or release.restarted() == []


@pytest.fixture
def lab(release: Release) -> Iterator[Lab]:
    lab = Lab(release)
    yield lab
    lab.remove()


@pytest.fixture
def cartpole(lab: Lab, repository: Path) -> dict[str, Any]:
    """examples/cartpole as a job with a learner; its learner's code is in the lab."""
    example = repository / "examples/cartpole"
    lab.kubectl("create", "configmap", "learner", f"--from-file={example / 'learner.py'}")
    job: dict[str, Any] = yaml.safe_load((example / "job.yaml").read_text())
    job["spec"]["learner"] = learner("/code/learner.py", "--output", "/tmp/out", "--until", "475")
    del job["spec"]["source"]
    return job


@pytest.fixture
def counting(lab: Lab, repository: Path) -> dict[str, Any]:
    """A job that goes on until it is stopped, with a learner that only counts; see `counting_job`."""
    return counting_job(lab, repository)

"""Helm, and the objects that it renders from the chart."""

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollfleet_operator.settings import Settings

ABSENT = "no helm: install Helm 3, or put it into a folder that KUBEBUILDER_ASSETS names"
Manifest = dict[str, Any]


def tools() -> str:
    """The PATH of programs of Kubernetes: the package `helm-binary` installs helm beside Python."""
    folders = os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ["PATH"], sysconfig.get_path("scripts")
    return os.pathsep.join(filter(None, folders))


def find(program: str) -> str | None:
    return shutil.which(program, path=tools())


class Rendered:
    def __init__(self, text: str) -> None:
        self.text = text
        self.manifests: list[Manifest] = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]

    def of(self, kind: str) -> dict[str, Manifest]:
        """All of a kind, by name; those of another namespace than the release's by `namespace/name`."""
        found = {}
        for each in self.manifests:
            metadata = each["metadata"]
            if each["kind"] == kind:
                found["/".join(filter(None, (metadata.get("namespace"), metadata["name"]))).removeprefix("site/")] = (
                    each
                )
        return found

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """The specification of every pod that would run, with its owner's name."""
        for each in self.manifests:
            if each["kind"] == "Pod":
                yield each["metadata"]["name"], each["spec"]
            elif each["kind"] in ("Deployment", "Job"):
                yield each["metadata"]["name"], each["spec"]["template"]["spec"]

    def pod(self, owner: str) -> Manifest:
        return dict(self.pods())[owner]

    def images(self) -> set[str]:
        settings = self.settings()
        own = {each["image"] for _, pod in self.pods() for each in pod["containers"]}
        return {settings.worker_image, settings.nats_image, *own}

    def environment(self) -> dict[str, str]:
        """The operator's variables."""
        (container,) = self.pod("rollfleet")["containers"]
        return {each["name"]: each.get("value", "of-the-pod") for each in container["env"]}

    def settings(self) -> Settings:
        return Settings.read(self.environment())


class Helm:
    """The program, for one chart; skips the test where there is none.

    Attributes:
        chart: The chart's folder.
    """

    def __init__(self, chart: Path) -> None:
        program = find("helm")
        if program is None:
            pytest.skip(ABSENT)
        self._program, self.chart = program, chart

    def run(self, *arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, *arguments], capture_output=True, text=True, env=os.environ | (environ or {}), timeout=60
        )

    def render(self, *options: str, **values: object) -> Rendered:
        done = self.run(*self._template(options, values))
        assert done.returncode == 0, done.stderr
        return Rendered(done.stdout)

    def refusal(self, **values: object) -> str:
        done = self.run(*self._template((), values))
        assert done.returncode != 0, "it was taken"
        return done.stderr

    def _template(self, options: tuple[str, ...], values: dict[str, object]) -> list[str]:
        release = ["template", "rollfleet", str(self.chart), "--namespace=site", "--kube-version=1.34.0"]
        result = [f"--set-json={name.replace('__', '.')}={json.dumps(value)}" for name, value in values.items()]
        return [*release, *result, *options]

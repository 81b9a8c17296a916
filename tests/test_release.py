"""A release could be made from this tree: one version in all places, one address, and parts that work."""

import os
import re
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.control.chart.helm import ABSENT, find, tools

WORKFLOWS = ("tests", "release", "docs", "torchrl-nightly")


def test_every_place_has_the_version_of_the_project(repository: Path, project: dict[str, Any]) -> None:
    version = project["version"]
    chart = yaml.safe_load((repository / "charts/rollfleet/Chart.yaml").read_text())
    assert chart["appVersion"] == version
    assert chart["version"] == re.sub(r"\.?(dev|a|b|rc)(\d+)$", r"-\1\2", version), "Helm wants -rc1 for rc1"
    assert yaml.safe_load((repository / "CITATION.cff").read_text())["version"] == version
    for page in ("install.md", "quick-start.md"):
        shown = re.findall(r"\b\d+\.\d+\.\d+\.?(?:dev|a|b|rc)\d+\b", (repository / "docs" / page).read_text())
        assert set(shown) == {version}, page


def test_the_images_have_the_version_of_the_chart_by_default(repository: Path) -> None:
    values = yaml.safe_load((repository / "charts/rollfleet/values.yaml").read_text())
    assert (values["operator"]["image"]["tag"], values["worker"]["image"]["tag"]) == ("", "")


def test_the_repository_has_one_address(repository: Path, project: dict[str, Any]) -> None:
    address = project["urls"]["Source"]
    files = [*repository.glob("*.md"), *repository.glob("*.cff"), *repository.glob("krew/*"), repository / "mkdocs.yml"]
    files += [*(repository / ".github").rglob("*.yml"), repository / "charts/rollfleet/Chart.yaml"]
    found = {hit for file in files for hit in re.findall(r"https://github\.com/rollfleet/[\w.-]+", file.read_text())}
    assert found == {address}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_action_is_pinned_by_its_commit(repository: Path, workflow: str) -> None:
    text = (repository / f".github/workflows/{workflow}.yaml").read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each)] == []


def test_the_tests_run_on_every_python_that_the_package_names(repository: Path, project: dict[str, Any]) -> None:
    jobs = yaml.safe_load((repository / ".github/workflows/tests.yaml").read_text())["jobs"]
    named = {line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line}
    assert named <= set(jobs["tests"]["strategy"]["matrix"]["python"])


@pytest.mark.parametrize(("tag", "code"), [("v{}", 0), ("{}", 2), ("v{}1", 2), ("", 2)])
def test_a_release_is_built_from_the_tag_of_its_version(
    repository: Path, project: dict[str, Any], tag: str, code: int
) -> None:
    version = project["version"]
    command = ["make", "--silent", "tag", f"TAG={tag.format(version)}"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "" if code else f"version={version}\n")
    assert (f"pyproject.toml has {version}" in done.stderr) == (code > 0)


@pytest.fixture
def plugin(repository: Path, tmp_path: Path) -> Path:
    """Return the folder of the plugin, unpacked as Krew does."""
    subprocess.run([repository / "krew/package", "1.2.3", tmp_path], check=True)
    subprocess.run(["tar", "-xzf", tmp_path / "kubectl-rollfleet.tar.gz", "-C", tmp_path], check=True)
    return tmp_path


def test_the_manifest_of_the_plugin_names_its_archive(plugin: Path) -> None:
    spec = yaml.safe_load((plugin / "krew.yaml").read_text())["spec"]
    (platform,) = spec["platforms"]
    digest = sha256((plugin / "kubectl-rollfleet.tar.gz").read_bytes()).hexdigest()
    assert (spec["version"], platform["sha256"]) == ("v1.2.3", digest)
    assert platform["uri"].endswith("/v1.2.3/kubectl-rollfleet.tar.gz")
    assert (plugin / platform["bin"]).is_file()
    assert (plugin / "LICENSE").is_file()


def test_the_plugin_starts_the_command_with_all_arguments(plugin: Path) -> None:
    command = plugin / "rollfleet"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    environ = os.environ | {"PATH": f"{plugin}{os.pathsep}{os.environ['PATH']}"}
    arguments = ["describe", "a name", "--context=kind"]
    done = subprocess.run([plugin / "kubectl-rollfleet", *arguments], env=environ, capture_output=True, text=True)
    assert done.stdout.splitlines() == arguments


def test_the_plugin_names_the_command_that_installs_what_it_needs(plugin: Path) -> None:
    done = subprocess.run([plugin / "kubectl-rollfleet"], env={"PATH": str(plugin)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'rollfleet[cluster]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_packaged_chart_has_the_images_of_its_registry(repository: Path, tmp_path: Path) -> None:
    if not (helm := find("helm")):
        pytest.skip(ABSENT)
    environ = os.environ | {"PATH": tools(), "REGISTRY": "registry.example/team"}
    subprocess.run([repository / "charts/package", tmp_path], env=environ, check=True, capture_output=True)
    (chart,) = tmp_path.glob("rollfleet-*.tgz")
    shown = subprocess.run([helm, "show", "values", chart], capture_output=True, text=True, check=True).stdout
    values = yaml.safe_load(shown)
    for part in ("operator", "worker"):
        assert values[part]["image"]["repository"] == f"registry.example/team/rollfleet-{part}"
    assert values["imageRegistry"] == ""  # the image `nats` comes from elsewhere


def test_the_address_of_a_pushed_chart_has_its_digest(repository: Path, tmp_path: Path) -> None:
    helm = tmp_path / "helm"
    helm.write_text('#!/bin/sh\necho "Pushed: $3"\necho "Digest: sha256:0123"\n')
    helm.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "REGISTRY": "registry.example/team"}
    command = [repository / "charts/push", tmp_path]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "registry.example/team/charts/rollfleet@sha256:0123\n"
    helm.write_text("#!/bin/sh\necho no access; exit 1\n")
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "no access\n")

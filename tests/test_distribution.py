"""What is installed: one distribution, four packages, at pinned versions."""

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rollfleet.cli.starters import STARTERS

PACKAGES = {
    "rollfleet_api": "sdk/rollfleet_api",
    "rollfleet_ui": "sdk/rollfleet_ui",
    "rollfleet": "sdk/rollfleet",
    "rollfleet_operator": "operator/rollfleet_operator",
}
PACKAGED_EXAMPLES = "rollfleet/cli/examples"


@pytest.fixture
def requirements(project: dict[str, Any]) -> list[Requirement]:
    """All that the project names, in any extra, but for itself."""
    named = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    return [requirement for line in named if (requirement := Requirement(line)).name != project["name"]]


@pytest.fixture
def pins(repository: Path) -> dict[str, str]:
    lines = [line for line in (repository / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    unpinned = [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    assert not unpinned, "a line is a name and a version: no host, no path, no option"
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def test_the_wheel_holds_the_four_packages_whole_and_nothing_else(repository: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        links = set(re.findall(r"\]\((?!https://)[^)]+\)", archive.read(metadata).decode()))
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert not links, "a package index, which shows the README, has no such files"
    assert {name.partition("/")[0] for name in held} == set(PACKAGES)
    written = {
        str(Path(package) / path.relative_to(repository / folder))
        for package, folder in PACKAGES.items()
        for path in (repository / folder).rglob("*.py")
    }
    examples = {f"{PACKAGED_EXAMPLES}/{name}" for files in STARTERS.values() for name in files}
    assert examples <= held, "`rollfleet init` copies them"
    assert {name for name in held - examples if name.endswith(".py")} == written


def test_the_operators_image_installs_the_operators_list_alone(repository: Path) -> None:
    (stage,) = re.findall(
        r"^FROM build AS build-operator\n(.*?)^FROM", (repository / "Dockerfile").read_text(), re.DOTALL | re.MULTILINE
    )
    installs = re.findall(r"pip --python \S+ install ([^&]*)", stage)
    assert len(installs) == 2
    assert "--requirement operator.txt" in installs[0]
    assert "--no-deps ." in installs[1]  # the project's own dependencies have torch


def test_every_dependency_is_pinned_to_a_version_that_is_allowed_and_no_address_is_named(
    requirements: list[Requirement], pins: dict[str, str]
) -> None:
    unpinned = [requirement.name for requirement in requirements if canonicalize_name(requirement.name) not in pins]
    assert not unpinned
    refused = [
        str(requirement)
        for requirement in requirements
        if not requirement.specifier.contains(pins[canonicalize_name(requirement.name)], prereleases=True)
    ]
    assert not refused
    assert not [str(requirement) for requirement in requirements if requirement.url]

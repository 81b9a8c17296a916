"""Names of functions and classes for a job, and the modules that travel with them."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rollfleet.cluster.sources import MAIN, MAX_BYTES, Sources
from rollfleet.errors import JobInvalid

PACKAGE = {
    "farm/__init__.py": "",
    "farm/fields.py": "import numpy\nfrom . import soil\nfrom .tools.plough import turn\ndef make(depth=1): ...",
    "farm/soil.py": "DEPTH = 2",
    "farm/tools/__init__.py": "",
    "farm/tools/plough.py": "import barn\ndef turn(): return barn",
    "barn.py": "import farm.fields",  # a cycle
    "unused.py": "",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with `PACKAGE`."""
    for name, text in PACKAGE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()
    for name in [each for each in sys.modules if each.partition(".")[0] in ("farm", "barn")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.usefixtures("package")
def test_a_function_travels_with_the_modules_of_the_users_own_that_it_imports() -> None:
    sources = Sources()
    named = sources.name(partial(import_module("farm.fields").make, depth=3), "env")
    assert (named.entrypoint, named.kwargs) == ("farm.fields:make", {"depth": 3})
    assert sources.files == {name: text for name, text in PACKAGE.items() if name != "unused.py"}


@pytest.mark.usefixtures("package")
def test_the_config_map_has_a_key_for_each_file_and_a_volume_puts_it_into_its_folder() -> None:
    sources = Sources()
    sources.keep("farm.soil")
    found = sources.config_map("code", "team-a")
    assert found["metadata"] == {"name": "code", "namespace": "team-a"}
    assert found["data"] == {"farm.soil.py": "DEPTH = 2", "farm.__init__.py": ""}
    (volume,) = sources.folders("code")
    assert {"key": "farm.soil.py", "path": "farm/soil.py"} in volume["configMap"]["items"]
    alone = Sources()
    alone.keep("unused")
    assert alone.folders("code") == [], "a file without a folder needs no such volume"


def test_installed_modules_and_our_own_do_not_travel() -> None:
    sources = Sources()
    assert sources.name(gymnasium.make, "env").entrypoint == "gymnasium.envs.registration:make"
    for module in ("numpy", "json", "rollfleet.testing", "no_such_module", "sys"):
        sources.keep(module)
    assert sources.files == {}


def local() -> Callable[[], int]:
    def inner() -> int:
        return 1

    return inner


class Called:
    def __call__(self) -> None: ...

    @classmethod
    def make(cls) -> None: ...


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 1, r"`env` is a lambda, which no worker can import; .*\n    def make\(\*\*kwargs\):\n.*`env=make`"),
        (local(), r"`env` is a local function or class, which no worker can import"),
        (Called(), r"`env`: workers import code by its name, and <.*Called object at .* has none"),
        (wraps(local)(lambda: 1), r"`env`: workers import code by its name, and <function local .* has none"),
        (5, r"`env`: workers import code by its name, and 5 has none; pass a function or a class"),
        (partial(gymnasium.make, "CartPole-v1"), r"`env`: a partial for a cluster has keywords only"),
    ],
)
def test_what_has_no_name_is_refused_with_what_to_write(value: Any, message: str) -> None:
    with pytest.raises(JobInvalid, match=message):
        Sources().name(value, "env")


def test_a_method_of_a_class_has_a_name() -> None:
    assert Sources().name(Called.make, "env").entrypoint.endswith(":Called.make")


def test_modules_larger_than_a_config_map_are_listed(package: Path) -> None:
    (package / "unused.py").write_text("#" * (MAX_BYTES + 1))
    sources = Sources()
    sources.keep("unused")
    with pytest.raises(JobInvalid, match=r"your modules have 1024 KiB, .*: unused.py \(1024 KiB\); build an image"):
        sources.config_map("code", "team-a")


def test_functions_of_the_program_itself_travel_as_a_module(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import barn\nfrom rollfleet.cluster.sources import Sources\nSCALE = 2\n"
        "def make(): return SCALE, barn\nclass Other: pass\n"
        "sources = Sources()\nprint(sources.name(make, 'env').entrypoint, sources.name(Other, 'policy').entrypoint)\n"
        "print(*sorted(sources.files))\nprint(sources.files['main_program.py'])\n"
    )
    (tmp_path / "barn.py").write_text("")
    found = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, cwd=tmp_path)
    names, files, *text = found.stdout.splitlines()
    assert names == f"{MAIN}:make {MAIN}:Other"
    assert files == "barn.py main_program.py"
    assert text == ["import barn", "SCALE = 2", "def make():", "    return (SCALE, barn)", "class Other:", "    pass"]


def test_a_notebooks_functions_travel_and_those_of_pythons_prompt_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    main: dict[str, Any] = {"__name__": "__main__"}
    cells = ["SCALE = 3", "def make(): return SCALE", "make()"]
    for cell in cells:
        exec(cell, main)
    namespace = type(sys)("__main__")
    vars(namespace).update(main, __spec__=None)
    monkeypatch.setitem(sys.modules, "__main__", namespace)
    with pytest.raises(JobInvalid, match="Python's prompt keeps no source"):
        Sources().name(namespace.make, "env")
    vars(namespace)["In"] = cells  # as IPython does
    sources = Sources()
    assert sources.name(namespace.make, "env").entrypoint == f"{MAIN}:make"
    assert sources.files == {f"{MAIN}.py": "SCALE = 3\ndef make():\n    return SCALE"}

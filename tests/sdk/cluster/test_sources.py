"""Names of functions and classes for a job, and the modules that travel with them."""

import sys
from functools import partial
from importlib import import_module, invalidate_caches
from pathlib import Path
from threading import Lock
from typing import Any

import gymnasium
import pytest

from rollfleet.cluster.sources import MAX_BYTES, Sources
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
    spec: dict[str, Any] = {"learner": {"template": {}}}
    sources.write_into(spec, "code")
    (volume,) = spec["template"]["spec"]["volumes"]
    assert spec == {
        "source": {"configMap": "code"},
        "template": spec["template"],
        "learner": {"template": spec["template"]},
    }
    assert {"key": "farm.soil.py", "path": "farm/soil.py"} in volume["configMap"]["items"]
    alone = Sources()
    alone.keep("unused")
    plain: dict[str, Any] = {"source": {"configMap": "mine"}}
    alone.write_into(plain, "code")
    assert plain == {"source": {"configMap": "mine"}}, "a file without a folder needs no such volume"


def test_installed_modules_and_our_own_do_not_travel() -> None:
    sources = Sources()
    assert sources.name(gymnasium.make, "env").entrypoint == "gymnasium.envs.registration:make"
    for module in ("numpy", "json", "rollfleet.testing", "no_such_module", "sys"):
        sources.keep(module)
    assert sources.files == {}


class Called:
    @classmethod
    def make(cls) -> None: ...


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "`env`: expected a function, a class or its 'module:callable', got 5"),
        (partial(print, Lock()), r"`env` cannot be sent to a worker: TypeError.*; write a function at the top"),
    ],
)
def test_what_cannot_travel_is_refused_with_what_to_write(value: Any, message: str) -> None:
    with pytest.raises(JobInvalid, match=message):
        Sources().name(value, "env")


@pytest.mark.parametrize("source", [b"def make(:", b"# \xff"])
def test_a_module_that_is_not_python_is_named(package: Path, source: bytes) -> None:
    (package / "barn.py").write_bytes(source)
    with pytest.raises(JobInvalid, match=r"barn\.py is not Python in UTF-8: "):
        Sources().keep("farm.fields")


@pytest.mark.parametrize("top", ["raise RuntimeError('no GPU')", "import sys\nsys.exit()"])
def test_modules_are_found_without_running_those_around_them(package: Path, top: str) -> None:
    files = {"farm/__init__.py": top, "farm/soil.py": "from barn import args", "barn.py": f"{top}\nargs = 1"}
    for name, text in files.items():
        (package / name).write_text(text)
    sources = Sources()
    sources.keep("farm.soil")
    assert sources.files == files


def test_a_method_of_a_class_has_a_name() -> None:
    assert Sources().name(Called.make, "env").entrypoint.endswith(":Called.make")


def test_modules_larger_than_a_config_map_are_listed(package: Path) -> None:
    (package / "unused.py").write_text("#" * (MAX_BYTES + 1))
    sources = Sources()
    sources.keep("unused")
    with pytest.raises(JobInvalid, match=r"your modules have 1024 KiB, .*: unused.py \(1024 KiB\); build an image"):
        sources.config_map("code", "team-a")

"""Names of functions and classes for a job, and the modules that define them.

A job names code. Modules of the user's own travel as whole files in a ConfigMap, which workers have on their import
path. Installed modules do not: the image has them. What no module defines travels as bytes of cloudpickle in a file:
functions of the running script or of a notebook, lambdas, closures. Only a job's author writes that ConfigMap.
"""

import ast
import base64
import importlib.util
import pkgutil
import site
import sys
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import ModuleSpec
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import cloudpickle  # type: ignore[import-untyped]
import xxhash

from rollfleet.arguments import shown
from rollfleet.cluster.pickled_module import written
from rollfleet.errors import JobInvalid

MAX_BYTES: Final = 1 << 20
"""The most bytes that the API server takes in one ConfigMap."""

_OURS: Final = ("rollfleet", "rollfleet_api", "rollfleet_operator")
_INSTALLED: Final = tuple(
    Path(path).resolve()
    for path in (
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A callable as a job names it: `module:callable`, with its keyword arguments."""

    entrypoint: str
    kwargs: dict[str, Any]


class Sources:
    """The modules that a job needs besides those of its image.

    Example:
        >>> from collections import OrderedDict
        >>> sources = Sources()
        >>> sources.name(OrderedDict, "env").entrypoint
        'collections:OrderedDict'
        >>> sources.files
        {}

    Attributes:
        files: The text of each module, by its path below the import folder.
    """

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def name(self, value: Any, keyword: str) -> Named:
        """Return the name of a function, a class, or a `functools.partial` with keywords. Keep its code.

        Raises:
            JobInvalid: It is not callable, or cannot be pickled. The message shows what to write.
        """
        if isinstance(value, partial) and not value.args:
            inner = self.name(value.func, keyword)
            return Named(entrypoint=inner.entrypoint, kwargs=inner.kwargs | value.keywords)
        module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if isinstance(module, str) and module != "__main__" and _is_found(value, module, qualname):
            self.keep(module)
            return Named(entrypoint=f"{module}:{qualname}", kwargs={})
        if not callable(value):
            raise JobInvalid(f"`{keyword}`: expected a function, a class or its 'module:callable', got {shown(value)}")
        return Named(entrypoint=f"{self._pickle(value, keyword)}:value", kwargs={})

    def keep(self, module: str) -> None:
        """Keep a module that a job names, and the modules of the user's own that it imports; an installed one: none.

        Raises:
            JobInvalid: The file of one has a syntax error, or is not UTF-8.
        """
        if parent := module.rpartition(".")[0]:
            self.keep(parent)
        spec = _own(module)
        if spec is None:
            return
        path = _path(spec)
        if path in self.files:
            return
        assert spec.origin is not None
        try:
            text = Path(spec.origin).read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise JobInvalid(f"{spec.origin} is not Python in UTF-8: {error}") from error
        self.files[path] = text
        for imported in _imported(tree, _package(spec)):
            self.keep(imported)

    def config_map(self, name: str, namespace: str) -> dict[str, Any]:
        """Return a ConfigMap with the files.

        Raises:
            JobInvalid: They are larger than a ConfigMap. The message lists the largest.
        """
        sizes = {path: len(text.encode()) for path, text in self.files.items()}
        if sum(sizes.values()) > MAX_BYTES:
            largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
            listed = ", ".join(f"{path} ({sizes[path] >> 10} KiB)" for path in largest)
            raise JobInvalid(
                f"your modules have {sum(sizes.values()) >> 10} KiB, but a ConfigMap has at most {MAX_BYTES >> 10}: "
                f"{listed}; build an image with them, and write `Cluster(image=...)`"
            )
        metadata = {"name": name, "namespace": namespace}
        data = {_key(path): text for path, text in self.files.items()}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def write_into(self, spec: dict[str, Any], config_map: str) -> None:
        """Name the ConfigMap of the files in a job's spec, in the words of YAML, unless it names another.

        The operator mounts the volume `source` with the keys of the ConfigMap, and a key has no folder: packages need
        that volume in the templates of the job's pods.
        """
        name = spec.setdefault("source", {"configMap": config_map})["configMap"]
        if not any("/" in path for path in self.files):
            return
        items = [{"key": _key(path), "path": path} for path in self.files]
        volume = {"name": "source", "configMap": {"name": name, "items": items}}
        for owner in filter(None, (spec, spec.get("learner"), spec.get("env", {}).get("servers"))):
            template = owner.get("template") or {}
            pod = template.get("spec") or {}
            owner["template"] = template | {"spec": pod | {"volumes": [volume, *(pod.get("volumes") or [])]}}

    def _pickle(self, value: Any, keyword: str) -> str:
        """Keep a module with a pickled value, which takes parts of the user's own modules along. Return its name."""
        own = [sys.modules[name] for name in list(sys.modules) if name != "__main__" and is_own(name)]
        for module in own:
            cloudpickle.register_pickle_by_value(module)
        try:
            data = zlib.compress(cloudpickle.dumps(value))
        except Exception as error:  # `__reduce__` and `__getstate__` may raise any error
            raise JobInvalid(
                f"`{keyword}` cannot be sent to a worker: {error!r}; write a function at the top of a module that "
                f"makes it there, and pass that"
            ) from error
        finally:
            for module in own:
                cloudpickle.unregister_pickle_by_value(module)
        name = f"pickled_{xxhash.xxh64_hexdigest(data)}"
        self.files[f"{name}.py"] = written(base64.b64encode(data).decode())
        return name


def _is_found(value: Any, module: str, qualname: str) -> bool:
    try:
        found = attrgetter(qualname)(sys.modules[module])
    except (AttributeError, KeyError):
        return False
    return bool(found == value)


@cache
def is_own(module: str) -> bool:
    """Return whether a loaded module is the user's own: not installed, and not built in."""
    return _own(module) is not None


def _own(module: str) -> ModuleSpec | None:
    """Return the spec of a module of the user's own; None: it is installed, built in, or not found here."""
    if module.partition(".")[0] in _OURS:
        return None
    try:
        spec = _spec(module)
    except (ImportError, ValueError, AttributeError):  # no such module, or no such package
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    file = Path(spec.origin).resolve()
    return None if any(file.is_relative_to(folder) for folder in _INSTALLED) else spec


def _spec(module: str) -> ModuleSpec | None:
    """Find a module as an import does, but run none of the packages around it: they may need a GPU, or arguments."""
    parent = module.rpartition(".")[0]
    if not parent or module in sys.modules:
        return importlib.util.find_spec(module)
    package = _spec(parent)
    for folder in (package.submodule_search_locations if package else None) or ():
        finder = pkgutil.get_importer(folder)
        if finder and (found := finder.find_spec(module)):
            return found
    return None


def _path(spec: ModuleSpec) -> str:
    folder = spec.name.replace(".", "/")
    return f"{folder}/__init__.py" if spec.submodule_search_locations is not None else f"{folder}.py"


def _key(path: str) -> str:
    return path.replace("/", ".")


def _package(spec: ModuleSpec) -> str:
    return spec.name if spec.submodule_search_locations is not None else spec.name.rpartition(".")[0]


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names of all modules that a module may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)

"""Run TorchRL's own tests of its collectors with `rollfleet.torchrl`'s classes in place of its own.

    python benchmarks/torchrl_suite.py CHECKOUT            # with the classes of rollfleet.torchrl
    python benchmarks/torchrl_suite.py CHECKOUT --theirs   # with its own: the reference

CHECKOUT is a checkout of pytorch/rl near the installed version. The figure is about the tests that pass with TorchRL's
own classes, make a collector, and read nothing private. A test *makes a collector* if a constructor of a collector's
class of `torchrl.collectors` returns in the process of the test. It *reads something private* if its function, or a
function, class or fixture of the same file that it names (and those that they name), has an attribute with one leading
underscore of anything but `self` and `cls`, or a name that has one from `torchrl.collectors` or its modules.

Of 288 such tests, 272 passed with ours. The others, and those of the file that make no collector and fail:

- test_context_backend_dispatch, test_sequence_inference_and_options_are_not_mutated, test_backend_dispatch_validation:
  they replace TorchRL's own classes by mocks, or ask `torchrl.service_backend`, which has no public reader.
- test_ray_backend_rejects_direct_replay_buffer: here the learner writes, so any buffer can be used.
- test_concrete_default_divergences_are_pinned: it reads `inspect.signature(Class.__init__)`;
  `inspect.signature(Class)` has TorchRL's defaults.
- test_collector_frames_per_batch_worker: all but the last line, the text of an error.
- test_env_that_errors[MultiAsyncCollector]: a worker that fails in its first batch may end the constructor, not
  the loop.
- test_multisync_collector_interruptor_mechanism: with small batches all workers may finish before the first one stops
  the others.
- test_output_device: a policy that checks the device of its TensorDict, in an environment without one.
- test_default_emits_future_warning_about_v0_15_flip, test_explicit_false_is_silent_and_does_not_wrap: a recurrent
  policy's transforms are always added.
- test_collector_with_rb_uses_lazy_stack, test_runner_managed_replay_buffer_returns_uncloned_rollout: how TorchRL's
  collector copies into a buffer.
- test_trajs_per_batch_replay_buffer_device_metadata: a batch names the device of its environment also in a buffer
  without one.
- test_multiprocess_hook_setters_update_workers: workers get their hooks when they start.
- TestCollectorProfiling: profiling is not available.
"""

import argparse
import ast
import contextlib
import importlib
import json
import os
import sys
import tempfile
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

_NAMES = """
Collector AsyncCollector MultiCollector MultiSyncCollector MultiAsyncCollector distributed.DistributedCollector
distributed.DistributedSyncCollector distributed.RPCCollector distributed.RayCollector
"""


class PrivateNames:
    """Which functions of a file read something private of a collector, by the rule above."""

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text())
        self._definitions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
        self._private = {
            alias.asname or alias.name.partition(".")[0]
            for each in ast.walk(tree)
            if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("torchrl.collectors")
            for alias in each.names
            if alias.name.startswith("_")
        }

    def reads(self, test: str) -> bool:
        """Return whether a test does: `name`, or `Class::name`."""
        owner, _, name = test.rpartition("::")
        members = {each.name: each for each in self._definitions[owner].body if hasattr(each, "name")} if owner else {}
        scope, todo, seen = self._definitions | members, [name], set()
        while todo:
            seen.add(name := todo.pop())
            for node in ast.walk(scope[name]):
                named = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "arg", None)
                if self._is_private(node):
                    return True
                if named in scope and named not in seen and named != owner:
                    todo.append(named)
        return False

    def _is_private(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            return node.attr.startswith("_") and not node.attr.startswith("__") and not of_self
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        return "torchrl.collectors._" in text or (isinstance(node, ast.Name) and node.id in self._private)


class Suite:
    """A plugin of pytest that counts outcomes, and notes which tests make a collector."""

    def __init__(self, private: PrivateNames, file: Path | None, *, public: bool) -> None:
        self._file, self._public = file, public
        self.tests: dict[str, dict[str, Any]] = {}
        self._private, self._now = private, ""

    def watch(self, owner: Any) -> None:
        """Note the constructions of a class."""
        init = owner.__init__

        @wraps(init)
        def noted(this: Any, *args: Any, **kwargs: Any) -> None:
            init(this, *args, **kwargs)
            if self._now:
                self.tests[self._now]["makes"] = True

        owner.__init__ = noted

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what does not count."""
        if self._public:
            items[:] = [each for each in items if not self._private.reads(_name(each.nodeid).partition("[")[0])]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin a test."""
        self._now = test = _name(item.nodeid)
        private = self._private.reads(test.partition("[")[0])
        self.tests[test] = {"outcome": "passed", "makes": False, "private": private, "why": ""}

    def pytest_runtest_logfinish(self) -> None:
        """Write what is known: a run may be cut."""
        if self._file is not None:
            self._file.write_text(json.dumps(self.tests, indent=1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome."""
        test = self.tests.setdefault(_name(report.nodeid), {"outcome": "passed", "makes": False})
        test["seconds"] = round(test.get("seconds", 0) + report.duration, 2)
        if report.outcome != "passed":
            if report.when == "teardown" and test["outcome"] != "passed":
                return
            lines = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).splitlines()
            why = next((line for line in reversed(lines) if line.strip()), "")
            test |= {"outcome": report.outcome, "why": why[:400]}
            print(f"\n{report.outcome} {_name(report.nodeid)}: {test['why'][:200]}", flush=True)


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def main() -> None:
    """Run the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--theirs", action="store_true", help="with TorchRL's own classes")
    parser.add_argument("--public", action="store_true", help="only tests that read nothing private")
    parser.add_argument("--timeout", type=int, default=60, help="seconds of one test (%(default)s)")
    parser.add_argument("--json", type=Path, help="write each test's outcome to this file")
    parser.add_argument("--reference", type=Path, help="the JSON of a run --theirs: count the tests that pass there")
    parser.add_argument("-k", default="", help="pytest's -k")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    path = (options.checkout / "test" / "test_collectors.py").resolve()
    if not options.theirs:
        from rollfleet.torchrl.program import install

        install()
    suite = Suite(PrivateNames(path), options.json and options.json.resolve(), public=options.public)
    for name in _NAMES.split():
        module, _, name = f"torchrl.collectors.{name}".rpartition(".")
        suite.watch(getattr(importlib.import_module(module), name))
    sys.argv = [str(path)]
    arguments = "-qq --no-summary -p no:cacheprovider -p no:randomly --timeout-method=signal --tb=native -W ignore"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(path.parent):
        given = [f"--timeout={options.timeout}", f"--basetemp={folder}/t", "-k", options.k]
        pytest.main([str(path), *arguments.split(), *given], plugins=[suite])
    print(dict(Counter(test["outcome"] for test in suite.tests.values())), "of all")
    reference = json.loads(options.reference.read_text()) if options.reference else suite.tests
    counted = {
        name
        for name, test in reference.items()
        if test["outcome"] == "passed" and test["makes"] and not test["private"]
    }
    outcomes = Counter(suite.tests.get(name, {"outcome": "not run"})["outcome"] for name in counted)
    rule = "pass with TorchRL's classes, make a collector, read nothing private"
    print(dict(outcomes), f"of the {len(counted)} that {rule}")


if __name__ == "__main__":
    main()

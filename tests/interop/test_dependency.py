import ast
import multiprocessing
import subprocess
import sys
from pathlib import Path

FOLDERS = ("sdk", "operator", "examples")


COLLECT = """
import sys
import rollfleet
with rollfleet.Collector("CartPole-v1", frames_per_batch=4, total_frames=4) as collector:
    list(collector)
sys.exit(any(name.partition(".")[0] == "torchrl" for name in sys.modules))
"""


def imported(path: Path) -> set[str]:
    """Return the packages that a file imports when it is imported itself."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_only_its_own_package_and_its_example_import_torchrl(repository: Path) -> None:
    files = [path for folder in FOLDERS for path in (repository / folder).rglob("*.py")]
    found = {path.relative_to(repository) for path in files if "torchrl" in imported(path)}
    assert {path for path in found if path.parent != Path("sdk/rollfleet/torchrl")} == {Path("examples/torchrl_ppo.py")}


def test_collecting_from_gymnasium_imports_no_torchrl() -> None:
    assert subprocess.run([sys.executable, "-c", COLLECT], check=False).returncode == 0


def test_importing_torchrl_changes_no_other_test() -> None:
    """With the start method `spawn`, which it sets, each process of an environment takes seconds to start."""
    assert multiprocessing.get_context().get_start_method() == multiprocessing.get_all_start_methods()[0]

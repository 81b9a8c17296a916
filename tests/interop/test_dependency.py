import ast
import multiprocessing
from pathlib import Path

FOLDERS = ("sdk", "operator", "examples")


def imported(path: Path) -> set[str]:
    """Return the packages that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_no_shipped_file_imports_torchrl(repository: Path) -> None:
    files = [path for folder in FOLDERS for path in (repository / folder).rglob("*.py")]
    assert len(files) > 50
    assert [path.name for path in files if "torchrl" in imported(path)] == ["torchrl_ppo.py"], "but the example for it"


def test_an_import_inside_a_function_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def make():\n    from torchrl.data import ReplayBuffer\n    return ReplayBuffer\n")
    assert imported(file) == {"torchrl"}


def test_importing_torchrl_changes_no_other_test() -> None:
    """With the start method `spawn`, which it sets, each process of an environment takes seconds to start."""
    assert multiprocessing.get_context().get_start_method() == multiprocessing.get_all_start_methods()[0]

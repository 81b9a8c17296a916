"""The statements of a program that define some of its names."""

from rollfleet.cluster.definitions import definitions

PROGRAM = """
from __future__ import annotations
import gymnasium
import rollfleet
from math import pi as PI

try:
    import fast
except ImportError:
    fast = None

LIMIT = 3

def scaled(x):
    collector = 4
    return x * PI + LIMIT if fast else collector

class Base(gymnasium.Env):
    size = LIMIT

class Mine(Base):
    def step(self, action):
        return [scaled(each) for each in range(action)]

collector = rollfleet.Collector(Mine)
if __name__ == "__main__":
    WIDTH = 8

    def wide():
        return WIDTH

    collector.shutdown()
"""


def test_a_class_comes_with_all_that_it_uses_and_without_the_run() -> None:
    found = definitions([PROGRAM], ["Mine"])
    for part in ("annotations", "import gymnasium", "as PI", "fast = None", "LIMIT = 3", "def scaled", "class Base"):
        assert part in found
    for part in ("import rollfleet", "rollfleet.Collector", "WIDTH", "__main__"):
        assert part not in found, "a local variable `collector` is no use of the global one"


def test_definitions_below_the_main_block_count_and_its_calls_do_not() -> None:
    assert definitions([PROGRAM], ["wide"]).splitlines() == [
        "from __future__ import annotations",
        "WIDTH = 8",
        "def wide():",
        "    return WIDTH",
    ]


def test_the_last_of_a_notebooks_cells_wins_and_a_broken_cell_is_skipped() -> None:
    cells = ["def make():\n    return 1", "def make(:", "%matplotlib inline", "def make():\n    return 2", "make()"]
    found: dict[str, object] = {}
    exec(definitions(cells, ["make"]), found)
    assert found["make"]() == 2  # type: ignore[operator]


def test_an_unknown_name_has_no_statements() -> None:
    assert definitions(["x = 1"], ["y"]) == ""

"""The definitions of a program: the statements that define some of its names, without the program's own run."""

import ast
import re
import symtable
from collections.abc import Iterable, Iterator
from typing import Final

_ALWAYS: Final = re.compile(r"from (__future__ import|\S+ import \*)")
"""Statements that change what others mean, or bind names that only a run shows."""


def definitions(cells: Iterable[str], names: Iterable[str]) -> str:
    r"""Return the statements that define these names and all that they use, in the program's order.

    The statements below `if __name__ == "__main__"` count like all others: they are left out unless they are used.

    Args:
        cells: The source of a program, in one or several parts. A part with an error of syntax is skipped.
        names: Functions, classes or other global names.

    Example:
        >>> source = "import math\nSCALE = math.pi\ndef scaled(x):\n    return SCALE * x\nprint(scaled(2))"
        >>> print(definitions([source], ["scaled"]))
        import math
        SCALE = math.pi
        def scaled(x):
            return SCALE * x
    """
    statements = [(text, *_names(text)) for cell in cells for text in _statements(cell)]
    wanted, found = {*names}, {index for index, (text, *_) in enumerate(statements) if _ALWAYS.match(text)}
    while True:
        more = {index for index, (_, bound, _) in enumerate(statements) if bound & wanted} - found
        if not more:
            return "\n".join(statements[index][0] for index in sorted(found))
        found |= more
        wanted |= {used for index in more for used in statements[index][2]}


def _statements(cell: str) -> Iterator[str]:
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return
    for statement in body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
            yield from map(ast.unparse, statement.body)
        else:
            yield ast.unparse(statement)


def _names(statement: str) -> tuple[set[str], set[str]]:
    """Return the global names that a statement binds, and those that it uses."""
    module = symtable.symtable(statement, "<program>", "exec")
    bound = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
    used = {each.get_name() for each in module.get_symbols() if each.is_referenced()}
    inner = module.get_children()
    while inner:
        table = inner.pop()
        used |= {each.get_name() for each in table.get_symbols() if each.is_global()}
        inner += table.get_children()
    return bound, used

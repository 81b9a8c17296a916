"""The refusal to be copied, of what owns descriptors, processes or connections: its copy would close them, too."""

from typing import NoReturn


def refuse_copy(owner: object) -> NoReturn:
    """Raise TypeError: the `__reduce__` of a class whose objects cannot be copied or pickled."""
    raise TypeError(
        f"a {type(owner).__name__} cannot be copied or pickled, nor what refers to it: it owns parts of this process"
    )

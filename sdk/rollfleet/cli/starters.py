"""The files that `rollfleet init` copies: folders of the repository's examples, which a wheel holds in this package.

They may import only the public names of `rollfleet`.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from rollfleet.errors import RollfleetError

_EVERY: Final = ("job.yaml", "kustomization.yaml", "learner.py")
STARTERS: Final = {
    "ppo": [f"cartpole/{name}" for name in _EVERY],
    "custom-env": [
        *(f"corridor/{name}" for name in ("job.yaml", "kustomization.yaml", "environment.py", "policy.py")),
        "cartpole/learner.py",
    ],
    "sac": [f"pendulum/{name}" for name in (*_EVERY, "pendulum_policy.py")],
    "dqn": [f"dqn/{name}" for name in (*_EVERY, "dqn_policy.py")],
    "atari": [f"atari/{name}" for name in (*_EVERY, "atari_policy.py")],
}
"""The files of each starter, in the folder of examples."""


def write(starter: str, folder: Path) -> list[Path]:
    """Write the files of a starter into a folder, which is created.

    Returns:
        The written files.

    Raises:
        RollfleetError: The folder has one of the files; nothing is written.
    """
    packaged: Traversable = files("rollfleet.cli") / "examples"
    examples = packaged if packaged.is_dir() else Path(__file__).parents[3] / "examples"  # a checkout
    sources = {folder / Path(name).name: examples.joinpath(*name.split("/")) for name in STARTERS[starter]}
    if taken := [str(path) for path in sources if path.exists()]:
        raise RollfleetError(f"{taken[0]} exists already; name another folder: `rollfleet init FOLDER`")
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in sources.items():
        path.write_text(source.read_text())
    return list(sources)

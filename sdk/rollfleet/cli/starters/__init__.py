"""The files that `rollfleet init` copies: jobs, a learner, an environment and a policy.

They may import only the public names of `rollfleet`. `sac` and `atari` are folders of the repository's examples, which
a wheel holds as folders of this package.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from rollfleet.errors import RollfleetError


def _example(folder: str, *code: str) -> dict[str, str]:
    return {name: f"{folder}/{name}" for name in ("job.yaml", "kustomization.yaml", "learner.py", *code)}


STARTERS: Final = {
    "ppo": {"job.yaml": "ppo.yaml", "kustomization.yaml": "ppo-kustomization.yaml", "learner.py": "learner.py"},
    "custom-env": {
        "job.yaml": "custom-env.yaml",
        "kustomization.yaml": "custom-env-kustomization.yaml",
        "learner.py": "learner.py",
        "environment.py": "environment.py",
        "policy.py": "policy.py",
    },
    "sac": _example("pendulum", "pendulum_policy.py"),
    "atari": _example("atari", "atari_policy.py"),
}
"""The names of the written files, with those of their sources, by starter."""


def write(starter: str, folder: Path) -> list[Path]:
    """Write the files of a starter into a folder, which is created.

    Returns:
        The written files.

    Raises:
        RollfleetError: The folder has one of the files; nothing is written.
    """
    sources = {folder / name: _source(source) for name, source in STARTERS[starter].items()}
    if taken := [str(path) for path in sources if path.exists()]:
        raise RollfleetError(f"{taken[0]} exists already; name another folder: `rollfleet init FOLDER`")
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in sources.items():
        path.write_text(source.read_text())
    return list(sources)


def _source(name: str) -> Traversable:
    packaged = files(__name__) / name
    return packaged if packaged.is_file() else Path(__file__).parents[4] / "examples" / name  # a checkout

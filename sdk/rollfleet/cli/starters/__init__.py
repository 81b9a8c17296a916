"""The files that `rollfleet init` copies: jobs, a learner and an environment.

They may import only the public names of `rollfleet`.
"""

from importlib.resources import files
from pathlib import Path
from typing import Final

from rollfleet.errors import RollfleetError

STARTERS: Final = {
    "ppo": {"job.yaml": "ppo.yaml", "kustomization.yaml": "ppo-kustomization.yaml", "learner.py": "learner.py"},
    "custom-env": {
        "job.yaml": "custom-env.yaml",
        "kustomization.yaml": "custom-env-kustomization.yaml",
        "learner.py": "learner.py",
        "environment.py": "environment.py",
    },
}
"""The names of the written files, with those of their sources, by starter."""


def write(starter: str, folder: Path) -> list[Path]:
    """Write the files of a starter into a folder, which is created.

    Returns:
        The written files.

    Raises:
        RollfleetError: The folder has one of the files; nothing is written.
    """
    sources = {folder / name: files(__name__) / source for name, source in STARTERS[starter].items()}
    if taken := [str(path) for path in sources if path.exists()]:
        raise RollfleetError(f"{taken[0]} exists already; name another folder: `rollfleet init FOLDER`")
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in sources.items():
        path.write_text(source.read_text())
    return list(sources)

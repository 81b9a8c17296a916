"""The work behind `rollfleet fetch`: a worker on the cluster mounts a learner's volume, and its calls return the files.

This needs the rights and the ways of any collector on a cluster: none to create pods, and no log has the files.
"""

import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rollfleet.cluster.jobs import Jobs
from rollfleet.cluster.kept_files import FOLDER, claim_of, reader
from rollfleet.cluster.settings import Cluster
from rollfleet.collector import Collector
from rollfleet.errors import MessageCorrupt, RollfleetError

PIECE_BYTES: Final = 1 << 17  # in base64 it is a third longer, and a call's result is at most 256 KiB
TIMEOUT_S: Final = 300.0  # of the worker's start


class KeptFiles(gymnasium.Env[Any, Any]):
    """The files of a folder, for calls. Nothing happens in its episodes."""

    observation_space = action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode without an end."""
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Do nothing."""
        return 0, 0.0, False, False, {}

    def files(self) -> list[tuple[str, int]]:
        """Return the path and the size in bytes of each file, without links."""
        found = sorted(path for path in self._folder.rglob("*") if path.is_file() and not path.is_symlink())
        return [(path.relative_to(self._folder).as_posix(), path.stat().st_size) for path in found]

    def read(self, name: str, offset: int) -> NDArray[np.uint8]:
        """Return the next bytes of a file, uint8 `[n]`; at its end, none."""
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            return np.frombuffer(file.read(PIECE_BYTES), np.uint8)


def fetch(jobs: Jobs, job: str, to: Path, *, context: str | None) -> int:
    """Copy a job's kept files to a new folder, and return their number. The worker's job is deleted in every case.

    Raises:
        JobNotFound: The cluster has no such job.
        ClusterError: A right is missing, or the worker does not start. The message has the reason.
        RollfleetError: The job keeps no files, or the folder exists.
    """
    seen = jobs.get(job)
    if claim_of(seen) is None:
        raise RollfleetError(f"{seen.key} keeps no files: submit it with `--keep 1Gi`")
    if to.exists():
        raise RollfleetError(f"{to} exists: name another folder, `--to FOLDER`")
    image, namespace = (seen.spec.model_extra or {}).get("image"), seen.metadata.namespace
    place = Cluster(namespace=namespace, context=context, image=image, template=reader(seen), timeout_s=TIMEOUT_S)
    folder = {"folder": FOLDER}
    with Collector(KeptFiles, env_kwargs=folder, frames_per_batch=1, workers=1, cluster=place) as collector:
        return copy(collector, to)


def copy(collector: Collector, to: Path) -> int:
    """Copy the files of the worker's `KeptFiles` to a folder, which appears when all are there. Return their number.

    Raises:
        MessageCorrupt: The worker names a file outside of its folder.
        RollfleetError: A file is shorter than it was.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    files = collector.call(0, "env.files")[0][0]
    with tempfile.TemporaryDirectory(prefix=f".{to.name}-", dir=to.parent) as scratch:
        new = Path(scratch, "files")
        new.mkdir()
        for name, size in files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:  # a pod's code is not trusted
                raise MessageCorrupt(f"the worker names a file outside of its folder: {name!r}")
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            with (new / name).open("xb") as file:
                while file.tell() < size:
                    piece = collector.call(0, "env.read", name, file.tell())[0][0]
                    if not len(piece):
                        raise RollfleetError(f"{name} is shorter than it was: the learner changes it; fetch it later")
                    file.write(piece)
        new.rename(to)
    return len(files)

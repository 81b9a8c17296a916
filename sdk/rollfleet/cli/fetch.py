"""The work behind `rollfleet fetch`: a worker on the cluster mounts a learner's volume, and its calls return the files.

This needs the rights and the ways of any collector on a cluster: none to create pods, and no log has the files.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from heapq import nsmallest
from io import BufferedReader
from itertools import accumulate
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
LISTED: Final = 1000  # paths in one call's result, if they fit into `PIECE_BYTES` of JSON
TIMEOUT_S: Final = 300.0  # of the worker's start


class KeptFiles(gymnasium.Env[Any, Any]):
    """The files of a folder, for calls. Nothing happens in its episodes."""

    observation_space = action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, folder: str) -> None:
        self._folder, self._opened = Path(folder), ExitStack()
        self._file: BufferedReader | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode without an end."""
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Do nothing."""
        return 0, 0.0, False, False, {}

    def close(self) -> None:
        """Close the file that is read."""
        self._opened.close()

    def files(self, after: str) -> list[str]:
        """Return the paths of files, without links: the next that sort after `after`, at most `LISTED` that fit."""
        paths = (os.path.join(folder, name) for folder, _, names in os.walk(self._folder) for name in names)
        files = (path for path in paths if os.path.isfile(path) and not os.path.islink(path))  # no error: it is gone
        names = (Path(path).relative_to(self._folder).as_posix() for path in files)
        listed = nsmallest(LISTED, (name for name in names if name > after))
        sizes = accumulate(len(json.dumps(name)) + 2 for name in listed)
        return [name for name, size in zip(listed, sizes, strict=True) if size <= PIECE_BYTES]

    def read(self, name: str, offset: int) -> NDArray[np.uint8] | None:
        """Return the next bytes of a file, uint8 `[n]`; at its end, fewer than `PIECE_BYTES`.

        None: it is gone, cannot be read, or changed since its first bytes were read.
        """
        try:
            if offset == 0:  # it stays open until its end: a new file of its name is another one
                self.close()
                self._file = self._opened.enter_context((self._folder / name).open("rb"))
                self._begun = _state(self._file)
            if self._file is None:  # an earlier incarnation has read the first bytes
                return None
            self._file.seek(offset)
            piece = np.frombuffer(self._file.read(PIECE_BYTES), np.uint8)
            return piece if _state(self._file) == self._begun else None
        except OSError:
            return None


def fetch(jobs: Jobs, job: str, to: Path, *, context: str | None) -> dict[str, bool]:
    """Copy a job's kept files to a new folder; see `copy`. The worker's job is deleted in every case.

    Raises:
        JobNotFound: The cluster has no such job.
        ClusterError: A right is missing, or the worker does not start. The message has the reason.
        RollfleetError: The job keeps no files, or the folder exists.
    """
    seen = jobs.get(job)
    if claim_of(seen) is None:
        raise RollfleetError(f"{seen.key} keeps no files: submit it with `--keep 1Gi`")
    if os.path.lexists(to):
        raise RollfleetError(f"{to} exists: name another folder, `--to FOLDER`")
    image, namespace = (seen.spec.model_extra or {}).get("image"), seen.metadata.namespace
    place = Cluster(namespace=namespace, context=context, image=image, template=reader(seen), timeout_s=TIMEOUT_S)
    folder = {"folder": FOLDER}
    to.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=f".{to.name}-", dir=to.parent) as scratch,
        Collector(KeptFiles, env_kwargs=folder, frames_per_batch=1, workers=1, cluster=place) as collector,
    ):
        return copy(collector, Path(scratch), to)


def copy(collector: Collector, scratch: Path, to: Path) -> dict[str, bool]:
    """Copy the files of the worker's `KeptFiles` into `scratch`, and rename them to the folder `to` when all are there.

    Returns:
        Whether each file is there, by its path. False: it was deleted or changed meanwhile, or cannot be read.

    Raises:
        MessageCorrupt: The worker names a file outside of its folder, or answers with other types.
    """
    new = scratch / "files"
    new.mkdir()
    try:
        found = {name: _copied(collector, name, new / name) for name in _names(collector)}
    except (TypeError, ValueError, LookupError) as error:  # a pod's code is not trusted
        raise MessageCorrupt(f"the worker's answer is wrong: {error}") from error
    new.rename(to)
    return found


def _names(collector: Collector) -> Iterator[str]:
    last = ""
    while names := collector.call(0, "env.files", last)[0][0]:
        for name in names:
            if name <= last or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"{name!r:.200} is no new path in its folder")
            yield (last := name)


def _copied(collector: Collector, name: str, to: Path) -> bool:
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("xb") as file:
        while (piece := collector.call(0, "env.read", name, file.tell())[0][0]) is not None:
            if file.write(piece) < PIECE_BYTES:
                return True
    to.unlink()
    return False


def _state(file: BufferedReader) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns

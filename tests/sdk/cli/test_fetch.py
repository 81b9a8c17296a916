"""`rollfleet fetch`: a worker's calls return the kept files, and a hostile worker writes nowhere else."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.job_server import Server
from tests.sdk.over_nats import CollectOverNats

from rollfleet import Collector
from rollfleet.cli.fetch import PIECE_BYTES, KeptFiles, copy
from rollfleet.errors import CallFailed, MessageCorrupt, RollfleetError

Start = Callable[..., Collector]


class Hostile(KeptFiles):
    """A worker that names what it likes, and has 4 bytes of each."""

    def __init__(self, name: str, size: int = 4) -> None:
        super().__init__("/")
        self._found = [("policy.pt", 4), (name, size)]

    def files(self) -> list[tuple[str, int]]:
        return self._found

    def read(self, name: str, offset: int) -> Any:
        return np.zeros(4 if offset < 4 else 0, np.uint8)


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(env: type[KeptFiles], **kwargs: Any) -> Collector:
            return stack.enter_context(Collector(env, env_kwargs=kwargs, frames_per_batch=1))

        yield start


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    (folder / "checkpoints/empty").mkdir(parents=True)
    (folder / "checkpoints/checkpoint-1.pt").write_bytes(os.urandom(2 * PIECE_BYTES + 1))
    (folder / "whole.bin").write_bytes(os.urandom(PIECE_BYTES))
    (folder / "curve.csv").write_bytes(b"")
    (folder / "passwd").symlink_to("/etc/passwd")
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_are_copied_over_nats_byte_by_byte_without_links(server: Server, kept: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        collect = CollectOverNats(stack, server)
        collector = collect(KeptFiles, env_kwargs={"folder": str(kept)}, frames_per_batch=1, workers=1)
        assert copy(collector, tmp_path / "runs/mine") == 3
    (kept / "passwd").unlink()
    assert tree(tmp_path / "runs/mine") == tree(kept)
    assert os.listdir(tmp_path / "runs") == ["mine"]


@pytest.mark.parametrize("name", ["../stolen", "a/../../stolen", "/{}/stolen"])
def test_a_path_outside_of_the_folder_is_refused_and_nothing_stays(start: Start, tmp_path: Path, name: str) -> None:
    with pytest.raises(MessageCorrupt, match=r"the worker names a file outside of its folder: '.*stolen'"):
        copy(start(Hostile, name=name.format(tmp_path)), tmp_path / "runs/mine")
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_a_file_that_comes_twice_or_is_a_folder_too_is_an_error(start: Start, tmp_path: Path) -> None:
    for name in ("policy.pt", "policy.pt/more"):
        with pytest.raises(OSError, match=r"policy\.pt"):
            copy(start(Hostile, name=name), tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_shorter_than_it_was_or_gone_is_an_error(start: Start, kept: Path, tmp_path: Path) -> None:
    with pytest.raises(RollfleetError, match=r"^more\.pt is shorter than it was: the learner changes it"):
        copy(start(Hostile, name="more.pt", size=5), tmp_path / "mine")

    class Gone(KeptFiles):
        def files(self) -> list[tuple[str, int]]:
            return [("gone.pt", 1)]

    with pytest.raises(CallFailed, match=r"env\.read: .*No such file.*gone\.pt"):
        copy(start(Gone, folder=str(kept)), tmp_path / "mine")
    assert not (tmp_path / "mine").exists()

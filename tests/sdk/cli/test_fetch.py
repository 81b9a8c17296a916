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
from typer.testing import CliRunner

from rollfleet import Collector
from rollfleet.cli import fetch as cli_fetch
from rollfleet.cli.fetch import LISTED, PIECE_BYTES, KeptFiles, copy
from rollfleet.cli.main import app
from rollfleet.errors import MessageCorrupt

CHECKPOINT = "checkpoints/checkpoint-1.pt"
Start = Callable[..., Collector]


class Hostile(KeptFiles):
    """A worker that names what it likes, and answers with what it likes, or 4 bytes."""

    def __init__(self, name: object, answer: object = None) -> None:
        super().__init__("/")
        self._name, self._answered = name, np.zeros(4, np.uint8) if answer is None else answer

    def files(self, after: str) -> Any:
        return ["policy.pt", self._name]

    def read(self, name: str, offset: int) -> Any:
        return self._answered


class Beside(KeptFiles):
    """A worker whose learner changes a file, by `change`, when its first piece was read, and deletes another."""

    def __init__(self, folder: str, change: Callable[[Path], None]) -> None:
        super().__init__(folder)
        self._change = change

    def read(self, name: str, offset: int) -> Any:
        (self._folder / "whole.bin").unlink(missing_ok=True)
        piece = super().read(name, offset)
        if name == CHECKPOINT and offset == 0:
            self._change(self._folder / name)
        return piece


def replace(file: Path) -> None:
    file.with_name("new").write_bytes(b"new")
    file.with_name("new").rename(file)


def append(file: Path) -> None:
    with file.open("ab") as more:
        more.write(b"new")


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
    (folder / CHECKPOINT).write_bytes(os.urandom(2 * PIECE_BYTES + 1))
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
        assert copy(collector, tmp_path / "runs/mine") == dict.fromkeys([CHECKPOINT, "curve.csv", "whole.bin"], True)
    (kept / "passwd").unlink()
    assert tree(tmp_path / "runs/mine") == tree(kept)
    assert os.listdir(tmp_path / "runs") == ["mine"]


@pytest.mark.parametrize("name", ["../stolen", "a/../../stolen", "/{}/stolen", "stolen\0", 7, "policy.pt"])
def test_a_path_that_is_no_new_one_in_the_folder_is_refused_and_nothing_stays(
    start: Start, tmp_path: Path, name: Any
) -> None:
    named = name.format(tmp_path) if isinstance(name, str) else name
    with pytest.raises(
        MessageCorrupt, match=r"the worker's answer is wrong: ('.*(stolen|policy\.pt)' is no|.*null|.*str)"
    ):
        copy(start(Hostile, name=named), tmp_path / "runs/mine")
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_a_file_that_is_a_folder_too_is_an_error(start: Start, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"policy\.pt"):
        copy(start(Hostile, name="policy.pt/more"), tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_is_no_array_is_an_error(start: Start, tmp_path: Path) -> None:
    with pytest.raises(MessageCorrupt, match=r"the worker's answer is wrong: .*not 'str'"):
        copy(start(Hostile, name="more.pt", answer="text"), tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_replaced_while_it_is_read_is_copied_as_it_was(start: Start, kept: Path, tmp_path: Path) -> None:
    before = (kept / CHECKPOINT).read_bytes()
    assert copy(start(Beside, folder=str(kept), change=replace), tmp_path / "mine")[CHECKPOINT]
    assert (tmp_path / "mine" / CHECKPOINT).read_bytes() == before


def test_files_that_change_or_are_deleted_meanwhile_are_left_out(start: Start, kept: Path, tmp_path: Path) -> None:
    found = copy(start(Beside, folder=str(kept), change=append), tmp_path / "mine")
    assert found == {CHECKPOINT: False, "curve.csv": True, "whole.bin": False}
    assert tree(tmp_path / "mine") == {"curve.csv": b""}


def test_many_paths_come_in_several_calls(start: Start, tmp_path: Path) -> None:
    names = [f"{number:0150}" for number in range(2 * LISTED)]
    for name in names:
        (tmp_path / name).touch()
    collector = start(KeptFiles, folder=str(tmp_path))
    (first,) = collector.call(0, "env.files", "")[0]
    (second,) = collector.call(0, "env.files", first[-1])[0]
    assert first + second == names
    assert collector.call(0, "env.files", second[-1])[0] == [[]]


def test_all_paths_of_several_calls_are_copied(
    start: Start, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_fetch, "LISTED", 1)
    assert sum(copy(start(KeptFiles, folder=str(kept)), tmp_path / "mine").values()) == 3


def test_the_command_names_each_file_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollfleet.cluster.jobs.ClusterApi", lambda **_: None)
    monkeypatch.setattr(cli_fetch, "fetch", lambda *_, **__: {"curve.csv": True, "policy.pt": False})
    done = CliRunner().invoke(app, ["fetch", "lab/mine"])
    assert done.stdout == "1 file in mine\n"
    assert done.stderr == "'policy.pt' was deleted or changed while it was read: fetch it again\n"
    assert done.exit_code == 1

"""`rollfleet fetch`: a worker's calls return the kept files, and a hostile worker writes nowhere else."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from tests.job_server import Server
from tests.sdk.over_nats import CollectOverNats
from typer.testing import CliRunner

from rollfleet import Collector
from rollfleet.cli import fetch as cli_fetch
from rollfleet.cli.fetch import LISTED, PIECE_BYTES, KeptFiles
from rollfleet.cli.main import app
from rollfleet.errors import MessageCorrupt

CHECKPOINT = "checkpoints/checkpoint-1.pt"
Start = Callable[..., Collector]


class Hostile(KeptFiles):
    """A worker that names what it likes, and answers with what it likes, or 4 bytes."""

    def __init__(self, names: object, answer: object = None) -> None:
        super().__init__("/")
        self._names, self._answered = names, np.zeros(4, np.uint8) if answer is None else answer

    def files(self, after: str) -> Any:
        return [] if after else self._names

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


def copy(collector: Collector, to: Path) -> dict[str, bool]:
    to.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=to.parent) as scratch:
        return cli_fetch.copy(collector, Path(scratch), to)


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


@pytest.mark.parametrize(
    ("names", "answer", "wrong"),
    [
        (["../../stolen"], None, "'../../stolen' is no new path in its folder"),
        (["a/../../../stolen"], None, "'a/../../../stolen' is no new path"),
        (["{}/stolen"], None, "'/.*/stolen' is no new path"),
        (["policy.pt", "policy.pt"], None, "'policy.pt' is no new path"),
        (["stolen\0"], None, "null"),
        ([7], None, "'int' and 'str'"),
        (["more.pt"], "text", "not 'str'"),
    ],
)
def test_an_answer_that_is_no_array_of_a_new_path_in_the_folder_is_refused_and_nothing_stays(
    start: Start, tmp_path: Path, names: list[Any], answer: object, wrong: str
) -> None:
    named = [name.format(tmp_path) if isinstance(name, str) else name for name in names]
    with pytest.raises(MessageCorrupt, match=f"the worker's answer is wrong: .*{wrong}"):
        copy(start(Hostile, names=named, answer=answer), tmp_path / "runs/mine")
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_a_file_that_is_a_folder_too_is_an_error(start: Start, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"policy\.pt"):
        copy(start(Hostile, names=["policy.pt", "policy.pt/more"]), tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_replaced_while_it_is_read_is_copied_as_it_was(start: Start, kept: Path, tmp_path: Path) -> None:
    before = (kept / CHECKPOINT).read_bytes()
    assert copy(start(Beside, folder=str(kept), change=replace), tmp_path / "mine")[CHECKPOINT]
    assert (tmp_path / "mine" / CHECKPOINT).read_bytes() == before


def test_files_that_change_or_are_deleted_meanwhile_are_left_out(start: Start, kept: Path, tmp_path: Path) -> None:
    found = copy(start(Beside, folder=str(kept), change=append), tmp_path / "mine")
    assert found == {CHECKPOINT: False, "curve.csv": True, "whole.bin": False}
    assert tree(tmp_path / "mine") == {"curve.csv": b""}


def test_long_paths_in_other_letters_come_in_calls_that_fit(start: Start, tmp_path: Path) -> None:
    for number in range(LISTED):
        (tmp_path / f"{number:04}{'雪' * 80}").touch()
    collector = start(KeptFiles, folder=str(tmp_path))
    found, last = list[str](), ""
    while paths := collector.call(0, "env.files", last)[0][0]:
        assert len(json.dumps(paths)) <= PIECE_BYTES
        found += paths
        last = paths[-1]
    assert found == sorted(os.listdir(tmp_path))


def test_a_file_whose_reader_restarts_or_may_not_read_it_is_left_out(kept: Path) -> None:
    reader = KeptFiles(str(kept))
    assert reader.read(CHECKPOINT, PIECE_BYTES) is None, "an earlier incarnation read the first bytes"
    assert reader.read("checkpoints", 0) is None, "a folder now"
    assert reader.read("whole.bin/more", 0) is None
    piece = reader.read("whole.bin", 0)
    assert piece is not None
    assert piece.nbytes == PIECE_BYTES
    reader.close()


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
    assert done.stderr == (
        "'policy.pt' was deleted or changed while it was read, or cannot be read\n"
        "fetch them again into another folder, with --to\n"
    )
    assert done.exit_code == 1

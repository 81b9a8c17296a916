"""A learning curve on disk: its rows survive the learner, and its picture can be drawn at any time."""

import csv
import struct
from pathlib import Path

import pytest

from rollfleet.errors import RollfleetError
from rollfleet.progress import LearningCurve, draw


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "curve.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def png_size(picture: Path) -> tuple[int, int]:
    """Return width and height in pixels, from the file's header."""
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[12:16] == b"IHDR"
    assert data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_row_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    with LearningCurve(tmp_path / "runs/a", title="a") as curve:
        curve.add(frames=10, mean_return=None, loss=0.5)
        assert rows(tmp_path / "runs/a") == [{"frames": "10", "mean_return": "", "loss": "0.5"}]
        curve.add(frames=20, mean_return=1.5, loss=None)
        assert rows(tmp_path / "runs/a")[1] == {"frames": "20", "mean_return": "1.5", "loss": ""}


def test_picture_can_be_drawn_while_the_curve_grows_and_later(tmp_path: Path) -> None:
    with LearningCurve(tmp_path, title="a") as curve:
        curve.add(frames=100, mean_return=None)
        for step in range(2, 5):
            curve.add(frames=100 * step, mean_return=float(step))
            assert curve.save() == tmp_path / "curve.png"
            assert png_size(tmp_path / "curve.png") == (800, 450)
    draw(tmp_path / "curve.csv", tmp_path / "later.png")
    assert png_size(tmp_path / "later.png") == (800, 450)


def test_older_curve_is_replaced_by_the_first_row(tmp_path: Path) -> None:
    """A learner that was resumed at its end emptied it, and failed to draw it."""
    for frames in (1, 2, None):
        with LearningCurve(tmp_path, title="a") as curve:
            if frames is not None:
                curve.add(frames=frames, mean_return=0.0)
            curve.save()
    assert [row["frames"] for row in rows(tmp_path)] == ["2"]


def test_a_resumed_learner_keeps_the_rows_of_before_its_checkpoint_and_has_each_row_once(tmp_path: Path) -> None:
    for after, frames, more in ((0, (10, 20, 30), {"loss": 1}), (20, (30, 40), {"loss": 2, "lag": 0})):
        with LearningCurve(tmp_path, title="a", after=after) as curve:
            for each in frames:
                curve.add(frames=each, mean_return=0.0, **more)
    assert [(row["frames"], row["loss"], row["lag"]) for row in rows(tmp_path)] == [
        ("10", "1", ""),
        ("20", "1", ""),
        ("30", "2", "0"),
        ("40", "2", "0"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["curve.csv"]


def test_a_number_that_comes_later_is_a_new_column(tmp_path: Path) -> None:
    with LearningCurve(tmp_path, title="a") as curve:
        curve.add(frames=1, mean_return=0.0)
        curve.add(frames=2, mean_return=0.0, success=1.0)
        curve.add(frames=3, mean_return=0.0)
    assert [(row["frames"], row["success"]) for row in rows(tmp_path)] == [("1", ""), ("2", "1.0"), ("3", "")]


@pytest.mark.parametrize("returns", [[], [None], [None, None]], ids=str)
def test_a_curve_without_a_mean_return_raises_instead_of_a_picture(tmp_path: Path, returns: list[None]) -> None:
    with LearningCurve(tmp_path, title="a") as curve:
        for value in returns:
            curve.add(frames=1, mean_return=value)
        with pytest.raises(RollfleetError, match=r"curve\.csv: no row has a mean return"):
            curve.save()
    assert not (tmp_path / "curve.png").exists()

"""A learning curve: a CSV file that grows by rows, and a picture at the end."""

import csv
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path

from rollfleet.errors import RollfleetError

Number = float | int | None


class LearningCurve(AbstractContextManager["LearningCurve"]):
    """Writes a learning curve row by row, so that no row is lost when the learner dies.

    Example:
        >>> import tempfile
        >>> from rollfleet import LearningCurve
        >>> with tempfile.TemporaryDirectory() as folder, LearningCurve(folder, title="CartPole-v1") as curve:
        ...     curve.add(frames=1024, mean_return=21.5)
        ...     curve.add(frames=2048, mean_return=35.0, success=0.1)
        ...     print(curve.save().name)
        curve.png

    Args:
        folder: The folder of `curve.csv` and `curve.png`. It is created.
        title: The title of the picture.
        after: The frames that a learner continues from: `collector.frames`, once its checkpoint is resumed. Rows up to
            there stay in an older curve of the folder, and the first new row replaces the others. 0: it replaces all.
    """

    def __init__(self, folder: str | Path, *, title: str, after: int = 0) -> None:
        self._folder, self._title, self._after = Path(folder), title, after
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = (self._folder / "curve.csv").open("a", newline="")
        self._names: list[str] = []
        self._writer: csv.DictWriter[str] | None = None

    def add(self, *, frames: int, mean_return: float | None, **more: Number) -> None:
        """Add a row. A name in `more` that no row before had is a new column."""
        row = {"frames": frames, "mean_return": mean_return, **more}
        if self._writer is None or row.keys() - self._names:
            after = inf if self._names else self._after
            self._names = [*dict.fromkeys([*self._names, *row])]
            self._writer = self._begin(self._names, after)
        self._writer.writerow(row)
        self._file.flush()

    def _begin(self, names: list[str], after: float) -> "csv.DictWriter[str]":
        """Continue in a new file with the header and the rows that stay. It is whole before it gets its name."""
        curve, unfinished = self._folder / "curve.csv", self._folder / "curve.tmp"
        with curve.open(newline="") as file:
            stay = [row for row in csv.DictReader(file) if int(row.get("frames") or after + 1) <= after]
        self._file.close()
        self._file = unfinished.open("w", newline="")
        writer = csv.DictWriter(self._file, names)
        writer.writeheader()
        writer.writerows({name: row.get(name) for name in names} for row in stay)
        self._file.flush()
        unfinished.replace(curve)
        return writer

    def save(self) -> Path:
        """Draw the picture. Returns its path."""
        picture = self._folder / "curve.png"
        draw(self._folder / "curve.csv", picture, title=self._title)
        return picture

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def draw(curve: Path, picture: Path, *, title: str | None = None) -> None:
    """Draw the mean return of a CSV file over its frames.

    Raises:
        RollfleetError: No row of the file has a mean return.
    """
    with curve.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("mean_return")]
    if not rows:
        raise RollfleetError(f"{curve}: no row has a mean return, because no episode has ended")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RollfleetError(
            f"a learning curve is drawn by matplotlib, which cannot be imported ({error}); "
            "pip install 'rollfleet[local]'"
        ) from error

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([int(row["frames"]) for row in rows], [float(row["mean_return"]) for row in rows], linewidth=2)
    axes.set(xlabel="frames", ylabel="mean return of the last 100 episodes", title=title or curve.stem)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.margins(x=0)
    figure.savefig(picture)

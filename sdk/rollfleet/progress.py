"""A learning curve: rows of numbers as CSV while it grows, a picture at the end."""

import csv
from pathlib import Path
from typing import Self

from rollfleet.errors import RollfleetError

Number = float | int | None


class LearningCurve:
    """Writes one row at a time, so that nothing is lost when the learner dies.

    Args:
        folder: Where `curve.csv` and `curve.png` go; it is made. An older curve there is replaced.
        title: Of the picture.
    """

    def __init__(self, folder: str | Path, *, title: str) -> None:
        self._folder, self._title = Path(folder), title
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = (self._folder / "curve.csv").open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def add(self, *, frames: int, mean_return: float | None, **more: Number) -> None:
        """Add a row. The names in `more` must be the same each time."""
        row = {"frames": frames, "mean_return": mean_return, **more}
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row))
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    def save(self) -> Path:
        """Draw the picture; returns where it is."""
        picture = self._folder / "curve.png"
        draw(self._folder / "curve.csv", picture, title=self._title)
        return picture

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def draw(curve: Path, picture: Path, *, title: str | None = None) -> None:
    """Draw a CSV's mean return over its frames.

    Raises:
        RollfleetError: The CSV has no rows with a mean return.
    """
    with curve.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("mean_return")]
    if not rows:
        raise RollfleetError(f"{curve}: no row has a mean return: no episode ended")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([int(row["frames"]) for row in rows], [float(row["mean_return"]) for row in rows], linewidth=2)
    axes.set(xlabel="frames", ylabel="mean return of the last 100 episodes", title=title or curve.stem)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.margins(x=0)
    figure.savefig(picture)

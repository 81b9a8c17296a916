"""A learner's numbers in a tracker: TensorBoard, Weights & Biases, MLflow, trackio, or the page of `rollfleet ui`.

A tracker's package is imported when `track` asks for it, never before.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from torch import Tensor

from rollfleet.arguments import path_of, shown
from rollfleet.errors import JobInvalid, RollfleetError
from rollfleet.learner.iterator import BatchIterator
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.state.processes import Heartbeats, Processes
from rollfleet_api.state.processes import Run as RunOfRole
from rollfleet_api.state.verdict import Stage, Verdict
from rollfleet_ui.local_job import LocalJob
from rollfleet_ui.saved_runs import SavedRun

Write: TypeAlias = Callable[[dict[str, float], int], object]
"""Takes numbers by name, and the step that they belong to."""

Close: TypeAlias = Callable[[], object]

PAGE_SAVE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a tracker needs to know of a run, at its beginning."""

    project: str
    name: str
    folder: Path
    collector: BatchIterator


def _tensorboard(run: Run) -> tuple[Write, Close]:
    from torch.utils.tensorboard import SummaryWriter

    # A resumed learner goes back to its checkpoint: TensorBoard hides the later steps of the one before.
    writer = SummaryWriter(str(run.folder / run.name), purge_step=run.collector.frames + 1)

    def write(numbers: dict[str, float], step: int) -> None:
        for name, number in numbers.items():
            writer.add_scalar(name, number, step)

    return write, writer.close


def _wandb(run: Run) -> tuple[Write, Close]:
    import wandb

    run.folder.mkdir(parents=True, exist_ok=True)
    opened = wandb.init(project=run.project, name=run.name, dir=run.folder)
    return opened.log, opened.finish


def _mlflow(run: Run) -> tuple[Write, Close]:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient()
    experiment = client.get_experiment_by_name(run.project)
    identity = experiment.experiment_id if experiment else client.create_experiment(run.project)
    opened = client.create_run(identity, run_name=run.name).info.run_id

    def write(numbers: dict[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        client.log_batch(opened, [Metric(name, number, now_ms, step) for name, number in numbers.items()])

    return write, lambda: client.set_terminated(opened)


def _trackio(run: Run) -> tuple[Write, Close]:
    import trackio

    opened = trackio.init(run.project, run.name, embed=False)
    return opened.log, opened.finish


def _page(run: Run) -> tuple[Write, Close]:
    collector, began_s = run.collector, time.time()
    metadata = collector.job.metadata.model_copy(update={"name": run.name})
    folder = run.folder / run.name / time.strftime("%Y%m%d-%H%M%S")
    job = LocalJob(collector.job.model_copy(update={"metadata": metadata}), folder, began_s)
    runs = {role: RunOfRole(name=str(role), role=role, uid=str(role), pods=1) for role in (Role.WORKER, Role.LEARNER)}
    heartbeats, speed, saved_s = Heartbeats(), 0.0, 0.0

    def look(now_s: float, *, ended: bool = False) -> None:
        ours = [(Role.LEARNER, 0), *((Role.WORKER, index) for index in heartbeats.workers)]
        pods = tuple(Pod.of_process(role, index, started_s=began_s, ended=ended) for role, index in ours)
        job.look(Processes(current=runs, pods=pods), heartbeats, now_s, frames_per_second=speed)

    def write(numbers: dict[str, float], step: int) -> None:
        nonlocal heartbeats, speed, saved_s
        now_s, speed = time.time(), numbers["collector/frames_per_s"]
        workers = {index: replace(beat, time_s=now_s) for index, beat in collector.stats().workers.items()}
        heartbeats = Heartbeats(workers=workers, learner=replace(collector._gatherer.status(), time_s=now_s))
        look(now_s)
        if now_s - saved_s > PAGE_SAVE_S:
            saved_s = now_s
            SavedRun.of(job.record).write(folder)

    def close() -> None:
        now_s = time.time()
        job.end(Verdict(Stage.COMPLETE, "TrackerClosed", "the program has closed its tracker"), now_s)
        look(now_s, ended=True)
        SavedRun.of(job.record).write(folder)

    return write, close


TRACKERS: Mapping[str, Callable[[Run], tuple[Write, Close]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
    "page": _page,
}
"""All trackers, by the package to install. Each opens a run, and returns how to write to it and how to close it."""


class Tracker(AbstractContextManager["Tracker"]):
    """Writes the numbers of a collector and its learner to a tracker, once per call. `track` makes it."""

    def __init__(self, collector: BatchIterator, write: Write, close: Close) -> None:
        self._collector, self._write, self._close = collector, write, close
        self._frames, self._time_s = collector.frames, time.monotonic()

    def log(self, values: Mapping[str, float | Tensor] | None = None) -> None:
        """Write the collector's numbers, and `values` beside them; the step is `collector.frames`.

        The collector's numbers are `collector/` and: `mean_return` and `mean_length` of the last 100 episodes,
        `frames_per_s` since the last call, `version`, `lag` of the worker that is furthest behind, and the waits of
        `rollfleet.Stats`, in seconds: `waited_s`, `waited_for_space_s`, `waited_for_weights_s`,
        `waited_for_environments_s`. If environments have failed, `failed_episodes`; if they have settings,
        `env_version`. Of the other numbers of `Stats.episode_statistics` the mean is `episode/` and the name; of all,
        the extremes are `episode_min/` and `episode_max/` and the name.

        Args:
            values: Numbers, or tensors of one number, by name.
        """
        numbers = self._of_collector() | {name: _number(value) for name, value in (values or {}).items()}
        self._write(numbers, self._collector.frames)

    def _of_collector(self) -> dict[str, float]:
        collector, now_s = self._collector, time.monotonic()
        stats = collector.stats()
        numbers = {
            "frames_per_s": (collector.frames - self._frames) / max(now_s - self._time_s, 1e-9),
            "version": collector.version,
            "lag": collector.version - min(collector.versions().values(), default=collector.version),
            "waited_s": stats.waited_s,
            "waited_for_space_s": stats.waited_for_space_s,
            "waited_for_weights_s": stats.waited_for_weights_s,
            "waited_for_environments_s": stats.waited_for_environments_s,
        }
        if collector.env_version:
            numbers["env_version"] = collector.env_version
        if stats.failed_episodes:
            numbers["failed_episodes"] = sum(stats.failed_episodes.values())
        if (mean_return := collector.mean_return) is not None:
            numbers |= {"mean_return": mean_return, "mean_length": fmean(collector.episode_lengths)}
        self._frames, self._time_s = collector.frames, now_s
        episodes: dict[str, float] = {}
        for name, each in stats.episode_statistics.items():
            if name not in ("return", "length"):
                episodes[f"episode/{name}"] = each.mean
            episodes |= {f"episode_min/{name}": each.min, f"episode_max/{name}": each.max}
        return {f"collector/{name}": float(number) for name, number in numbers.items()} | episodes

    def close(self) -> None:
        """End the run: the tracker writes what it still holds."""
        self._close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _number(value: float | Tensor) -> float:
    return float(value.item() if isinstance(value, Tensor) else value)  # `float` warns of a loss with its graph


def _unused(folder: Path, job: str, *, is_resumed: bool, takes: bool) -> str:
    """Return the first of `job`, `job-2`, `job-3` and so on that the folder does not have, or the last that it has.

    `takes`: make its folder at once, so that a run that begins at the same time gets another.
    """
    number = 1
    while (path := folder / (job if number == 1 else f"{job}-{number}")).exists() or (
        takes and not is_resumed and not _made(path)
    ):
        number += 1
    number = max(number - is_resumed, 1)
    return job if number == 1 else f"{job}-{number}"


def _made(path: Path) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def track(
    collector: BatchIterator,
    to: str,
    *,
    project: str = "rollfleet",
    name: str | None = None,
    folder: str | Path = "runs",
) -> Tracker:
    """Open a run of a tracker for a collector. Call `log` of the result after each batch.

    The tracker's own environment variables apply, such as `WANDB_MODE=offline`, `MLFLOW_TRACKING_URI` or `TRACKIO_DIR`.

    Example:
        >>> with rollfleet.connect(policy=policy) as collector:  # doctest: +SKIP
        ...     with rollfleet.track(collector, to="tensorboard") as tracker:
        ...         for batch in collector:
        ...             tracker.log({"loss": train(policy, batch)})

    Args:
        collector: The collector. If a checkpoint is resumed, do that first.
        to: "tensorboard", "wandb", "mlflow" or "trackio": the package, which must be installed. "page": the collector's
            numbers for `rollfleet ui runs`, without `values`.
        project: The project, or experiment, that the run belongs to. TensorBoard has none.
        name: The name of the run. None: the name of the job, with a number if the folder has a run of that name. After
            a resumed checkpoint: that of the newest such run.
        folder: The folder of files that TensorBoard, Weights & Biases and the page write here; those of the first and
            the last are in `folder/name`.

    Raises:
        JobInvalid: The tracker is unknown.
        RollfleetError: The tracker's package cannot be imported. The message has the command that installs it.
    """
    if not isinstance(to, str) or to not in TRACKERS:
        raise JobInvalid(f"to: expected one of {', '.join(TRACKERS)}, got {shown(to)}")
    where = path_of(folder, "folder")
    takes = to in ("tensorboard", "page")  # they write into the folder of this name
    name = name or _unused(where, collector.job.metadata.name, is_resumed=collector.frames > 0, takes=takes)
    run = Run(project=project, name=name, folder=where, collector=collector)
    try:
        write, close = TRACKERS[to](run)
    except ImportError as error:
        with suppress(OSError):  # it is not empty, or was not made
            (where / name).rmdir()
        raise RollfleetError(f"to={to!r}: the package cannot be imported ({error}); pip install {to}") from error
    return Tracker(collector, write, close)

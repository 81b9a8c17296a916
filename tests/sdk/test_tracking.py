"""A learner's numbers reach its tracker."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.own_environment import python_with
from tests.running import output_of

import rollfleet
from rollfleet.errors import JobInvalid, RollfleetError
from rollfleet.testing import CountingEnv
from rollfleet.tracking import Tracker
from rollfleet_ui.saved_runs import SavedRuns

# Each program runs offline. Behind "read" it prints the steps and values of `loss` that the tracker has stored.
LEARNER = """
import rollfleet
with (
    rollfleet.Collector("CartPole-v1", num_envs=4, frames_per_batch=128, total_frames=384) as collector,
    rollfleet.track(collector, to=TO, project="tests", name="one", folder="files") as tracker,
):
    for batch in collector:
        tracker.log({"loss": collector.frames / 128})
"""
READERS = {
    "wandb": """
from pathlib import Path
import wandb
wandb.teardown()  # its own process writes the file; this waits for the end of it
(file,) = Path("files").glob("wandb/offline-run-*/run-*.wandb")
names = file.read_bytes()
print("read", all(name in names for name in (b"loss", b"collector/mean_return", b"collector/frames_per_s")))
""",
    "mlflow": """
from mlflow import MlflowClient
client = MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
assert "collector/mean_return" in run.data.metrics
print("read", [[each.step, each.value] for each in client.get_metric_history(run.info.run_id, "loss")])
""",
    "trackio": """
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs("tests", "one")
assert "collector/mean_return" in rows[-1]
print("read", [[row["step"], row["loss"]] for row in rows])
""",
}
LOSSES = "[[128, 1.0], [256, 2.0], [384, 3.0]]"
STORED = {"wandb": "True", "mlflow": LOSSES, "trackio": LOSSES}


def test_tensorboard_gets_the_numbers_of_collector_and_learner(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with (
        rollfleet.Collector("CartPole-v1", num_envs=4, frames_per_batch=128, total_frames=384) as collector,
        rollfleet.track(collector, to="tensorboard", name="one", folder=tmp_path) as tracker,
    ):
        for _ in collector:
            tracker.log({"loss": torch.tensor(collector.frames / 128, requires_grad=True)})
        mean_return = collector.mean_return
    events = EventAccumulator(str(tmp_path / "one"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(128, 1.0), (256, 2.0), (384, 3.0)]
    assert events.Scalars("collector/mean_return")[-1].value == pytest.approx(mean_return)
    extremes = [events.Scalars(f"episode_{end}/return")[-1].value for end in ("min", "max")]
    assert extremes == [min(collector.episode_returns), max(collector.episode_returns)]
    assert events.Scalars("collector/mean_length")[-1].value == pytest.approx(mean_return)  # 1 for each frame
    assert all(each.value > 0 for each in events.Scalars("collector/frames_per_s"))
    assert events.Scalars("collector/waited_s")[0].value > 0
    assert 0 < events.Scalars("collector/waited_for_environments_s")[0].value < 60
    rest = {"version", "lag", "waited_for_space_s", "waited_for_weights_s"}
    assert {f"collector/{name}" for name in rest} <= set(events.Tags()["scalars"])


class Breaking(CountingEnv):
    def step(self, action: Any) -> Any:
        if self.steps == 5:
            raise ConnectionError("the simulator is gone")
        return super().step(action)


def test_failed_episodes_are_among_the_numbers() -> None:
    written: list[Any] = []
    failures = {"maxShare": 1.0}
    with rollfleet.Collector(Breaking, num_envs=1, frames_per_batch=12, env_failures=failures) as collector:
        tracker = Tracker(collector, lambda numbers, _: written.append(numbers), lambda: None)
        next(collector)
        tracker.log()
    assert written[0]["collector/failed_episodes"] == collector.stats().failed_episodes["ConnectionError"] == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_the_page_shows_the_run_of_a_collector(tmp_path: Path, workers: int) -> None:
    keywords: Any = {"num_envs": 4, "frames_per_batch": 128, "total_frames": 384, "workers": workers}
    with (
        rollfleet.Collector("CartPole-v1", **keywords) as collector,
        rollfleet.track(collector, to="page", name="one", folder=tmp_path) as tracker,
    ):
        for _ in collector:
            tracker.log({"loss": 1.0})
            (run,) = SavedRuns(tmp_path).jobs().values()
            assert run.row.diagnosis.state == "Running"
        mean_return = collector.mean_return
    (run,) = SavedRuns(tmp_path).jobs().values()
    assert (run.row.diagnosis.state, run.row.frames, run.row.total_frames) == ("Complete", 384, 384)
    assert run.row.name.startswith("one@")
    assert run.history().series["meanReturn"][-1] == pytest.approx(mean_return)
    assert [each.index for each in run.workers()] == [0, None]
    assert "CartPole-v1" in run.page().spec
    assert [each.kind for each in run.timeline()] == ["Created", "LearnerConnected", "Complete"]


def test_tensorboard_shows_each_step_once_after_a_resumed_learner_went_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed_frames, value in ((0, 1.0), (128, 2.0)):
        with rollfleet.Collector("CartPole-v1", frames_per_batch=128, total_frames=384) as collector:
            if resumed_frames:
                collector.load_state_dict(collector.state_dict() | {"frames": resumed_frames})
            with rollfleet.track(collector, to="tensorboard", folder=tmp_path, name="one") as tracker:
                for _ in collector:
                    tracker.log({"loss": value})
    events = EventAccumulator(str(tmp_path / "one"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(128, 1.0), (256, 2.0), (384, 2.0)]


def test_runs_have_the_name_of_the_job_and_a_number_and_a_resumed_learner_goes_on_with_the_newest(
    tmp_path: Path,
) -> None:
    for frames, names in ((0, ["collector"]), (0, ["collector", "collector-2"]), (8, ["collector", "collector-2"])):
        with rollfleet.Collector("CartPole-v1", frames_per_batch=8) as collector:
            collector.load_state_dict(collector.state_dict() | {"frames": frames})
            with rollfleet.track(collector, to="tensorboard", folder=tmp_path):
                pass
        assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_runs_that_begin_before_one_of_them_has_written_have_different_names(tmp_path: Path) -> None:
    with rollfleet.Collector("CartPole-v1", frames_per_batch=8) as collector:
        trackers = [rollfleet.track(collector, to="page", folder=tmp_path) for _ in range(2)]
        next(collector)
        for tracker in trackers:
            tracker.log()
            tracker.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["collector", "collector-2"]


@pytest.mark.parametrize("tracker", ["torch.utils.tensorboard", "wandb", "mlflow", "trackio"])
def test_missing_package_is_one_error_with_the_command_that_installs_it(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)  # as Python marks a module that cannot be imported
    to = tracker.rpartition(".")[2]
    message = rf"^to='{to}': .* cannot be imported .*; pip install {to}$"
    collector = rollfleet.Collector("CartPole-v1", frames_per_batch=8)
    with collector, pytest.raises(RollfleetError, match=message):
        rollfleet.track(collector, to=to, folder=tmp_path)


def test_unknown_tracker_is_an_error_that_names_the_known_ones() -> None:
    collector = rollfleet.Collector("CartPole-v1", frames_per_batch=8)
    with collector, pytest.raises(JobInvalid, match="one of tensorboard, wandb, mlflow, trackio, page, got 'csv'"):
        rollfleet.track(collector, to="csv")


@pytest.fixture(scope="module")
def trackers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the trackers that need other versions than ours; of the rest, it has this environment's."""
    return python_with(tmp_path_factory.mktemp("trackers"), "wandb", "mlflow-skinny", "trackio")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("to", READERS)
def test_tracker_of_another_package_gets_the_numbers_offline(to: str, trackers: Path, tmp_path: Path) -> None:
    environ = os.environ | {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": str(tmp_path / "mlflow"),
        "MLFLOW_ALLOW_FILE_STORE": "true",  # the small package has no database
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }
    program = f"TO = {to!r}\n{LEARNER}\n{READERS[to]}"
    assert f"read {STORED[to]}\n" in output_of(trackers, "-c", program, cwd=tmp_path, env=environ)

"""The examples run as documented; docs/examples.md shows their final results."""

import csv
import re
import runpy
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import gymnasium
import pytest
import torch
import yaml
from tests.own_environment import python_with
from tests.running import output_of
from tests.sdk.cli.program import Program, Workplace
from torch.nn.utils import parameters_to_vector
from typer.testing import CliRunner

from rollfleet import ActorCritic, Collector
from rollfleet.cli.main import app
from rollfleet.data.batch import pad

EXAMPLES = ["atari", "cartpole", "corridor", "dqn", "evaluation", "halfcheetah", "pendulum", "spot"]
WITH_CARTPOLES_LEARNER = ("corridor", "spot")
MAX_LINES = 200
PNG = b"\x89PNG\r\n\x1a\n"


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "curve.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def shortened(repository: Path, workplace: Workplace, example: str, frames: int, **spec: object) -> Program:
    """Run a copy of an example, with an earlier end, and these fields of its spec."""
    for file in (repository / "examples" / example).iterdir():
        if file.is_file():
            shutil.copy(file, workplace.folder)
    job = yaml.safe_load((workplace.folder / "job.yaml").read_text())
    job["spec"]["collect"]["totalFrames"] = frames
    (workplace.folder / "job.yaml").write_text(yaml.safe_dump(job | {"spec": job["spec"] | spec}))
    return workplace.run("--learner", "learner.py", "--", "--output", "out")


def assert_plays(workplace: Workplace) -> None:
    """Assert that the policy of a learner that was started in the workplace can be shown."""
    played = workplace.start("play", "out", "--job", "job.yaml", "--episodes", "1")
    assert played.wait(timeout_s=120) == 0, played.output
    assert "mean return" in played.output


def test_each_example_is_a_valid_job_and_most_have_a_short_learner(repository: Path) -> None:
    entries = sorted((repository / "examples").iterdir())
    folders = [path for path in entries if path.is_dir() and path.name != "__pycache__"]
    assert [folder.name for folder in folders] == EXAMPLES
    result = CliRunner().invoke(app, ["validate", *(str(folder / "job.yaml") for folder in folders)])
    assert result.exit_code == 0, result.output
    learners = [folder / "learner.py" for folder in folders if folder.name not in WITH_CARTPOLES_LEARNER]
    assert [path for path in learners if len(path.read_text().splitlines()) > MAX_LINES] == []


def test_a_learner_skips_the_padding_of_a_worker_that_left_early(repository: Path) -> None:
    train = runpy.run_path(str(repository / "examples/cartpole/learner.py"))["train"]
    env = gymnasium.make("CartPole-v1")
    policies = [ActorCritic(env.observation_space, env.action_space) for _ in range(2)]
    policies[1].load_state_dict(policies[0].state_dict())
    with Collector("CartPole-v1", policies[0], num_envs=8, frames_per_batch=512) as collector:
        batch = next(collector)
    for policy, given in zip(policies, (batch, pad(batch, 96)), strict=True):
        torch.manual_seed(0)
        train(policy, torch.optim.SGD(policy.parameters(), lr=0.1), given)
    torch.testing.assert_close(*(parameters_to_vector(policy.parameters()) for policy in policies))


@pytest.mark.slow
def test_cartpole_is_solved_although_a_worker_is_killed(repository: Path, workplace: Workplace) -> None:
    example = repository / "examples" / "cartpole"
    learner = ("--learner", str(example / "learner.py"), "--", "--output", "out", "--until", "475")
    program = workplace.start("run", str(example / "job.yaml"), *learner)
    program.wait_for(r"20,480 frames  mean return")
    program.kill_worker(1)
    program.wait_for(r"worker 1 ended: killed by SIGKILL")
    program.wait_for(r"worker 1 restarts \(1 of 10\)")
    program.wait_for(r"trained: .*, mean return (4[789]\d|500)\.\d")
    assert program.wait() == 0, program.output
    counted = [int(row["frames"]) for row in rows(workplace.folder)]
    # Each frame once. One round may close without the killed worker, if its restart takes 10 s.
    gained = [after - before for before, after in pairwise([0, *counted])]
    assert set(gained) <= {1024, 2048}
    assert gained.count(1024) <= 1
    assert (workplace.folder / "out" / "curve.png").read_bytes().startswith(PNG)
    played = workplace.start("play", "out", "--episodes", "1")
    assert played.wait() == 0, played.output
    assert float(played.wait_for(r"mean return (\S+)")[1]) > 400


@pytest.mark.slow
def test_the_evaluated_example_prints_evaluations_of_few_episodes(repository: Path, workplace: Workplace) -> None:
    evaluation = {"every": 1, "episodes": 2}
    program = shortened(repository, workplace, "evaluation", frames=6 * 2048, evaluation=evaluation)
    program.wait_for(r"version +\d+, +\d[\d,]* frames: +\d+\.\d \(\d+ to \d+\) in 2 episodes; training:")
    program.wait_for(r"not solved in 12,288 frames|solved by version")
    program.wait()
    assert rows(workplace.folder)


@pytest.mark.slow
def test_pendulum_learns_from_a_replay_buffer_that_workers_fill(repository: Path, workplace: Workplace) -> None:
    program = shortened(repository, workplace, "pendulum", frames=4096)
    program.wait_for(r"not solved in 4,096 frames")
    assert program.wait() == 1
    assert int(rows(workplace.folder)[-1]["version"]) > 32
    assert_plays(workplace)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dqn_learns_from_a_prioritised_buffer_of_n_step_frames(repository: Path, workplace: Workplace) -> None:
    program = shortened(repository, workplace, "dqn", frames=2048)
    assert program.wait(timeout_s=240) == 0, program.output
    assert "without exploration: mean return" in program.output
    assert (workplace.folder / "out" / "best.pt").exists()
    assert_plays(workplace)
    before = rows(workplace.folder)
    job = yaml.safe_load((workplace.folder / "job.yaml").read_text())
    job["spec"]["collect"]["totalFrames"] = 3072
    (workplace.folder / "job.yaml").write_text(yaml.safe_dump(job))
    resumed = workplace.run("--learner", "learner.py", "--", "--output", "out", "--resume")
    assert resumed.wait(timeout_s=240) == 0, resumed.output
    after = rows(workplace.folder)
    assert after[: len(before)] == before
    assert int(after[-1]["frames"]) == 3072


@pytest.mark.slow
def test_halfcheetah_trains_with_a_normaliser_that_is_broadcast(repository: Path, workplace: Workplace) -> None:
    program = shortened(repository, workplace, "halfcheetah", frames=16_384)
    assert program.wait() == 0, program.output
    assert [int(row["frames"]) for row in rows(workplace.folder)] == [4096, 8192, 12_288, 16_384]
    assert_plays(workplace)
    assert (workplace.folder / "out" / "curve.png").read_bytes().startswith(PNG)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_atari_trains_on_stacked_images_of_whole_games(repository: Path, workplace: Workplace) -> None:
    pytest.importorskip("envpool", reason="EnvPool has no wheel for this Python")
    program = shortened(repository, workplace, "atari", frames=18_432)
    assert program.wait(timeout_s=240) == 0, program.output
    last = rows(workplace.folder)[-1]
    assert int(last["frames"]) == 18_432
    assert -21 <= float(last["mean_return"]) < -15  # a game ends at 21 points
    assert (workplace.folder / "out" / "curve.png").read_bytes().startswith(PNG)
    assert_plays(workplace)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("example", "packages"),
    [
        ("cleanrl_ppo", ()),
        ("stable_baselines3_ppo", ()),
        ("torchrl_ppo", ()),
        ("cleanrl_make_vec", ()),
        ("cleanrl_dqn_make_vec", ()),
        ("stable_baselines3_make_vec", ()),
        ("skrl_make_vec", ("skrl==2.1.1",)),
        ("jax_make_vec", ("jax==0.10.2", "jaxlib==0.10.2", "ml_dtypes==0.6.0", "opt_einsum==3.4.0")),
    ],
)
def test_the_loop_of_another_library_learns(
    example: str, packages: tuple[str, ...], repository: Path, tmp_path: Path
) -> None:
    program = repository / "examples" / f"{example}.py"
    assert len(program.read_text().splitlines()) <= 120
    python = python_with(tmp_path / "packages", "--no-deps", *packages) if packages else sys.executable
    output = output_of(python, program, "8192", cwd=tmp_path)
    returns = [float(number) for number in re.findall(r"mean return (\S+)", output)]
    assert len(returns) == 8
    assert returns[-1] > 1.5 * returns[0], returns


@pytest.mark.slow
def test_a_loop_plays_images_of_games_in_servers(repository: Path, tmp_path: Path) -> None:
    packages = ("ale-py==0.12.1", "opencv-python-headless==5.0.0.93")
    python = python_with(tmp_path / "packages", "--no-deps", *packages)
    output = output_of(python, repository / "examples" / "cleanrl_atari_make_vec.py", "1024", cwd=tmp_path)
    points = re.search(r"1,024 frames  points (-?\d+)", output)
    assert points, output
    assert -24 < int(points[1]) < -8  # of eight games' first half minute, by chance


@pytest.mark.slow
@pytest.mark.parametrize("place", [[], ["--workers=2"]])
def test_one_program_runs_in_this_process_and_in_processes(place: list[str], repository: Path, tmp_path: Path) -> None:
    command = (sys.executable, repository / "examples" / "anywhere.py", "--frames=2048", *place)
    assert "2,048 frames  mean return" in output_of(*command, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_search_continues_in_processes_with_the_trials_of_another(repository: Path, tmp_path: Path) -> None:
    example = repository / "examples" / "optuna_search.py"
    command = (sys.executable, example, "--frames=4096", "--storage=sqlite:///search.db")
    for more, trials in ((["--trials=2"], 2), (["--trials=1", "--workers=1"], 3)):
        output = output_of(*command, *more, cwd=tmp_path)
        assert re.search(rf"^{trials} trials, \d pruned; the best: mean return \d+\.\d$", output, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_curriculum_makes_rooms_larger_as_its_policy_succeeds(repository: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "minigrid", "--no-deps", "minigrid==3.0.0")  # its pygame is not ours
    output = output_of(python, repository / "examples" / "curriculum.py", "--frames=40960", cwd=tmp_path)
    sizes = [int(size) for size in re.findall(r"frames  size (\d+)", output)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 6

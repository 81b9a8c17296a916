"""`rollfleet play` runs a trained policy in its job's environment, without exploration, and shows it."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml
from PIL import Image
from tests.api.job_data import job_data
from tests.job_server import always

import rollfleet
from rollfleet.cli.play import play
from rollfleet.errors import JobInvalid, RollfleetError
from rollfleet.processes.inline import InlineTransport
from rollfleet.rollout.episodes import LONG_FRAMES
from rollfleet.transports.workload import Workload
from rollfleet_api.documents import read_job

ENVIRONMENT = """
import gymnasium, numpy
from tests.sdk.rollouts import Observing

class Steps(Observing):
    "Ends after `length` frames, each with the action as its reward."
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self, length, render_mode=None):
        self.length, self.render_mode = length, render_mode

    def step(self, action):
        seen, _, *ended = super().step(action)
        return seen, float(action), *ended

    def render(self):
        return numpy.full((8, 16, 3), 20 * self.frame, numpy.uint8)
"""


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a job with its own environment, and a checkpoint of a policy that mostly takes action 1. Return it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps_env.py").write_text(ENVIRONMENT)
    write_job(tmp_path / "job.yaml")
    sys.path.insert(0, str(tmp_path))
    job = read_job(tmp_path / "job.yaml")
    workload = Workload.of(job)
    env = workload.make_env(0)
    made: Any = workload.make_policy(0, env.single_observation_space, env.single_action_space)
    policy: Any = always(made, 1)
    env.close()
    transport = InlineTransport(workload, acts_with_the_learners_policy=True)
    with rollfleet.Collector.over(transport, job, policy) as collector:
        return rollfleet.Checkpoint(tmp_path / "run", collector, {"policy": policy}).save()


def write_job(file: Path, *, hidden: int = 4, length: int = 5) -> Path:
    env = {"entrypoint": "steps_env:Steps", "kwargs": {"length": length}, "numEnvs": 2}
    file.write_text(yaml.safe_dump(job_data(env=env, policy={"mlp": {"hidden": [hidden]}})))
    return file


def played(policy: Path, **options: Any) -> None:
    """The environment of `trained` is named, as its user does."""
    make_env = None if options.get("job") else "steps_env:Steps"
    named = {"job": None, "make_env": make_env, "make_policy": None, "episodes": 2, "gif": None, "seed": 0}
    play(policy, **named | options)


def test_a_film_that_is_no_gif_is_refused(trained: Path) -> None:
    with pytest.raises(JobInvalid, match=r"--gif writes a GIF.*write film\.gif"):
        played(trained, gif=trained.with_name("film.mp4"))


def test_episodes_of_the_most_likely_actions_are_shown(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played(trained)
    assert capsys.readouterr().out.splitlines() == [
        "episode 1: return 5.0, 5 frames",
        "episode 2: return 5.0, 5 frames",
        "mean return 5.0",
    ]


def test_a_file_beside_a_job_takes_the_place_of_no_installed_module(trained: Path) -> None:
    """A `gymnasium.py` there would be executed."""
    beside = trained.parent.parent
    sys.path.remove(str(beside))
    (beside / "tabnanny.py").write_text("raise AssertionError")
    sys.modules.pop("tabnanny", None)
    played(trained, job=beside / "job.yaml", episodes=1)
    assert Path(str(importlib.import_module("tabnanny").__file__)).parent != beside


def test_folder_stands_for_its_newest_checkpoint_and_a_job_for_that_of_the_checkpoint(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played(trained.parent, job=write_job(trained.parents[1] / "longer.yaml", length=7), episodes=1)
    assert capsys.readouterr().out == "episode 1: return 7.0, 7 frames\nmean return 7.0\n"


def test_an_episode_that_may_have_no_end_is_a_warning(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = write_job(trained.parents[1] / "endless.yaml", length=LONG_FRAMES + 1000)
    played(trained, job=job, episodes=1)
    (warning,) = caplog.messages
    assert "waits for the end of an episode that has 30,0" in warning


@pytest.mark.parametrize(("fps", "duration_ms", "frames"), [(10, 100, [1, 2, 3, 4, 5]), (125, 20, [1, 4])])
def test_gif_has_the_speed_of_the_environment_and_of_a_fast_one_not_each_frame(
    trained: Path, monkeypatch: pytest.MonkeyPatch, fps: int, duration_ms: int, frames: list[int]
) -> None:
    monkeypatch.setitem(sys.modules["steps_env"].Steps.metadata, "render_fps", fps)
    played(trained, gif=trained.with_suffix(".gif"))
    with Image.open(trained.with_suffix(".gif")) as gif:
        shown = []
        for number in range(getattr(gif, "n_frames", 1)):
            gif.seek(number)
            shown.append((gif.size, gif.info["duration"], gif.convert("RGB").getpixel((0, 0))))
    assert shown == [((16, 8), duration_ms, (20 * frame,) * 3) for frame in frames]


def test_weights_of_another_policy_are_one_line(trained: Path) -> None:
    job = write_job(trained.parents[1] / "wider.yaml", hidden=8)
    one_line = r"^[^\n]*checkpoint-1\.pt: the part 'policy' does not fit: [^\n]*size mismatch[^\n]*--job$"
    with pytest.raises(RollfleetError, match=one_line):
        played(trained, job=job)


def test_checkpoint_without_a_policy_is_named(trained: Path) -> None:
    state = torch.load(trained, weights_only=True)
    torch.save(state | {"parts": {}}, trained)
    with pytest.raises(RollfleetError, match=r"checkpoint-1\.pt has no part `policy`"):
        played(trained)


@pytest.mark.parametrize("render", [lambda _: None, gymnasium.vector.VectorEnv.render], ids=["nothing", "error"])
def test_environment_that_cannot_draw_is_named(
    trained: Path, monkeypatch: pytest.MonkeyPatch, render: Callable[[object], object]
) -> None:
    monkeypatch.setattr(sys.modules["steps_env"].Steps, "render", render)
    with pytest.raises(RollfleetError, match="makes no pictures; play without --gif"):
        played(trained, gif=trained.with_suffix(".gif"))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_checkpoint_of_a_python_collector_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compiled: bool
) -> None:
    env = gymnasium.make("CartPole-v1")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space, hidden=(8,), activation="Relu")
    kwargs = {"max_episode_steps": 3}
    with rollfleet.Collector("CartPole-v1", policy, frames_per_batch=8, env_kwargs=kwargs) as collector:
        next(collector)
        part = torch.compile(policy, backend="eager") if compiled else policy
        rollfleet.Checkpoint(tmp_path, collector, {"policy": part}).save()
    played(tmp_path, make_env=None, episodes=1)
    assert capsys.readouterr().out.splitlines()[0] == "episode 1: return 3.0, 3 frames"


TORCHRL = """
import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import GymEnv

def env(render_mode=None):
    return GymEnv("CartPole-v1", max_episode_steps=3)

class Best(torch.nn.Linear):
    def forward(self, observation):
        return torch.nn.functional.one_hot(super().forward(observation).argmax(-1), 2)

def policy():
    return TensorDictModule(Best(4, 2), in_keys=["observation"], out_keys=["action"])
"""

OWN = """
import torch
from steps_env import Steps

def env():
    return Steps(length=3)

class Best(torch.nn.Linear):
    def forward(self, observation):
        assert not self.training
        return super().forward(observation).argmax(-1)

def policy():
    return Best(2, 2)
"""


@pytest.mark.parametrize(("module", "text"), [("of_torchrl", TORCHRL), ("own_steps", OWN)])
def test_objects_of_a_python_collector_are_named_to_play_its_checkpoint(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], module: str, text: str
) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    objects = importlib.import_module(module)
    policy = objects.policy().eval()
    *_, bias = policy.parameters()
    bias.data.copy_(torch.tensor([0.0, 9.0]))
    with rollfleet.Collector(objects.env, policy, frames_per_batch=8) as collector:
        next(collector)
        path = rollfleet.Checkpoint(tmp_path / module, collector, {"policy": policy}).save()
    with pytest.raises(RollfleetError, match=r"^the environment was passed as an object; .*--env and --policy"):
        played(path, make_env=None)
    with pytest.raises(RollfleetError, match=r"^the policy was passed as an object; .*--env and --policy"):
        played(path, make_env=f"{module}:env")
    named = {"make_env": f"{module}:env", "make_policy": f"{module}:policy", "episodes": 1}
    played(path, **named)
    assert "episode 1: return 3.0, 3 frames" in capsys.readouterr().out
    if module == "of_torchrl":
        with pytest.raises(RollfleetError, match="makes no pictures here; play without --gif"):
            played(path, gif=tmp_path / "a.gif", **named)


FOREIGN = "foreign:run"
CARTPOLE: dict[str, Any] = {"id": "CartPole-v1"}
CODE: dict[str, dict[str, Any]] = {
    "environment": {"env": {"entrypoint": FOREIGN}},
    "policy": {"env": CARTPOLE, "policy": {"entrypoint": FOREIGN}},
    "wrapper": {"env": CARTPOLE | {"wrappers": [{"entrypoint": FOREIGN}]}},
    "module of an id": {"env": {"id": "foreign:run-v0"}},
}


@pytest.fixture(params=[*CODE.values()], ids=[*CODE])
def of_a_stranger(request: pytest.FixtureRequest, trained: Path) -> Path:
    """A checkpoint that names code which writes the file `ran`."""
    (trained.parents[1] / "foreign.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    sys.modules.pop("foreign", None)
    state = torch.load(trained, weights_only=True)
    state["job"]["spec"] |= request.param
    torch.save(state, trained)
    return trained


def test_a_file_alone_runs_no_code_that_it_names(of_a_stranger: Path) -> None:
    with pytest.raises(RollfleetError, match=r"checkpoint-1\.pt names code, foreign:run.*--job FILE, or --env"):
        played(of_a_stranger, make_env=None)
    assert not Path("ran").exists()


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_the_user_decides(of_a_stranger: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    user, terminal = os.openpty()
    os.write(user, f"{answer}\n".encode())
    with os.fdopen(terminal) as stdin, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", stdin)
        with pytest.raises(RollfleetError):  # there is no such callable
            played(of_a_stranger, make_env=None)
    os.close(user)
    assert Path("ran").exists() is (answer == "y")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"make_env": "steps_env"}, "--env: expected `module:callable`, e.g. my_envs:make, not 'steps_env'"),
        ({"make_policy": "a:b", "job": Path(__file__)}, "--env and --policy change the job of the checkpoint"),
    ],
)
def test_wrong_names_to_play_are_named(trained: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RollfleetError, match=message):
        played(trained, **options)

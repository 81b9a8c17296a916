"""`rollfleet play`: episodes of a trained policy, their returns, and a GIF of the first one."""

import os
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rollfleet.envs.factory import VectorEnv
    from rollfleet.policies.factory import Policy
    from rollfleet_api.job import CollectorJob


def play(
    policy: Annotated[Path, typer.Argument(help="A checkpoint, or a folder of checkpoints: the newest.", exists=True)],
    job: Annotated[
        Path | None,
        typer.Option(help="The job's YAML file. Default: the job of the checkpoint.", exists=True, dir_okay=False),
    ] = None,
    make_env: Annotated[
        str | None,
        typer.Option("--env", help="The `module:callable` of its environment, such as one that was an object."),
    ] = None,
    make_policy: Annotated[str | None, typer.Option("--policy", help="The `module:callable` of its policy.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 3,
    gif: Annotated[Path | None, typer.Option(help="Write the first episode to this GIF.", dir_okay=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the environment.")] = 0,
) -> None:
    """Run a trained policy without exploration, and show the return of each episode."""
    from rollfleet.checkpoint import read
    from rollfleet.cli.film import GifRecorder
    from rollfleet.envs.torchrl_env import TorchRLEnv
    from rollfleet.errors import JobInvalid
    from rollfleet.learner.construction import GIVEN
    from rollfleet.rollout.whole_episodes import WholeEpisodes
    from rollfleet_api.collection import Exploration
    from rollfleet_api.documents import read_job
    from rollfleet_api.job import CollectorJob

    if gif and gif.suffix.lower() != ".gif":
        raise JobInvalid(f"--gif writes a GIF, and {gif.name} is the name of none: write {gif.stem}.gif")
    if job and (make_env or make_policy):
        raise JobInvalid("--env and --policy change the job of the checkpoint; write them into the file of --job")
    path, saved = read(policy)
    known = read_job(job) if job else CollectorJob.model_validate(_named(saved["job"], make_env, make_policy))
    if not job:
        _confirm(path, known, {make_env, make_policy, GIVEN})
    sys.path.append(str(job.resolve().parent if job else Path.cwd()))  # the job's own modules, after installed ones
    try:
        env = _env(known, pictures=gif is not None)
        actor = _policy(known, env, path, saved["parts"])
        if gif and isinstance(env, TorchRLEnv):
            raise JobInvalid("an environment of TorchRL makes no pictures here; play without --gif")
    except JobInvalid as error:
        raise JobInvalid(f"{error}. Name a job that can be played: --job FILE, or --env and --policy") from error
    recorder = GifRecorder(env) if gif else None
    collect = known.spec.collect.model_copy(update={"seed": seed})
    returns = []
    with closing(WholeEpisodes(recorder or env, actor, collect, Exploration.DETERMINISTIC)) as played:
        for number in range(1, episodes + 1):
            found = played.run(1, first=number - 1)
            assert found is not None, "nothing stops it"
            (gained,), (frames,) = found
            returns.append(gained)
            typer.echo(f"episode {number}: return {gained:.1f}, {frames:,} frames")
            if recorder and gif and number == 1:
                recorder.save(gif, frames)
                typer.echo(f"episode 1: {gif}")
    typer.echo(f"mean return {sum(returns) / episodes:.1f}")


def _named(job: dict[str, Any], env: str | None, policy: str | None) -> dict[str, Any]:
    """Return a job with another environment or policy: that of a `Collector` may name neither."""
    from rollfleet.errors import JobInvalid

    for option, value in (("--env", env), ("--policy", policy)):
        if value is not None and not re.fullmatch(r"[\w.]+:[\w.]+", value):
            raise JobInvalid(f"{option}: expected `module:callable`, e.g. my_envs:make, not {value!r}")
    spec = dict(job["spec"])
    if env is not None:
        spec["env"] = {key: value for key, value in spec["env"].items() if key != "id"} | {"entrypoint": env}
    if policy is not None:
        spec["policy"] = {"entrypoint": policy}
    return job | {"spec": spec}


def _confirm(path: Path, job: "CollectorJob", given: set[str | None]) -> None:
    """Ask before code runs that only a checkpoint names, and not `given`: the file may come from a stranger."""
    from rollfleet.errors import JobInvalid

    env, policy = job.spec.env, job.spec.policy
    own_id = env.id if env.id and ":" in env.id else None  # its module would be imported
    named = [own_id, env.entrypoint, *(wrapper.entrypoint for wrapper in env.wrappers), policy.entrypoint]
    names = ", ".join(each for each in named if each is not None and each not in given)
    if not names or (
        sys.stdin.isatty() and typer.confirm(f"{path} names code to run here: {names}. Run it?", err=True)
    ):
        return
    raise JobInvalid(
        f"{path} names code, {names}, which does not run for the file alone; name it yourself: --job FILE, or --env "
        "and --policy"
    )


def _env(job: "CollectorJob", *, pictures: bool) -> "VectorEnv":
    from rollfleet.envs.factory import make_one

    spec = job.spec.env
    if pictures:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a display
        spec = spec.model_copy(update={"kwargs": {**spec.kwargs, "render_mode": "rgb_array"}})
    return make_one(spec)


def _policy(job: "CollectorJob", env: "VectorEnv", path: Path, parts: dict[str, Any]) -> "Policy":
    """Make the job's policy on the CPU, with the weights of a checkpoint."""
    from torch import nn

    from rollfleet.checkpoint import load
    from rollfleet.errors import RollfleetError
    from rollfleet.policies.factory import make_policy

    spec = job.spec.policy.model_copy(update={"device": "cpu"})
    policy = make_policy(spec, env.single_observation_space, env.single_action_space)
    if isinstance(policy, nn.Module) and policy.state_dict():
        if "policy" not in parts:
            raise RollfleetError(f"{path} has no part `policy`; write Checkpoint(..., {{'policy': policy}})")
        load(policy.eval(), parts["policy"], f"{path}: the part 'policy'", "name its job: --job")
    return policy

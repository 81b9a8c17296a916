"""The `rollfleet` command. Each subcommand imports only what it needs: `validate` starts without torch."""

import asyncio
import logging
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollfleet.cli import cluster_commands
from rollfleet.cli.error_lines import OneLineErrors
from rollfleet.cli.play import play
from rollfleet_api.address import THREADS
from rollfleet_api.env_servers import CERTIFICATE, PORT

if TYPE_CHECKING:
    from rollfleet_api.job import CollectorJob

app = typer.Typer(
    cls=OneLineErrors,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    help="Collect reinforcement-learning data: run and check CollectorJobs here, or manage those of a cluster.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"rollfleet {version('rollfleet')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options of all commands; without a command, show the help."""
    if isinstance(context.command, OneLineErrors):
        context.command.verbose = verbose
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command(context_settings={"allow_interspersed_args": True})
def run(
    job: Annotated[Path, typer.Argument(help="The job's YAML file.", exists=True, dir_okay=False)],
    learner: Annotated[
        Path | None,
        typer.Option(
            help="A Python script that iterates over the job's batches. Default: count batches and drop them.",
            exists=True,
        ),
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the learner, after `--`.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers. Default: the job's `workers`.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed. Default: the job's `collect.seed`.")] = None,
    nats: Annotated[str | None, typer.Option(help="URL of a NATS server. Default: start an embedded server.")] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Show the run in a browser, and save its history into `runs`.")
    ] = False,
    ui_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page. Default: a free one.", show_default=False)
    ] = 0,
) -> None:
    """Run a job on this machine: a nats-server, the workers and the learner."""
    from rich.console import Console

    from rollfleet.cli.display import Display
    from rollfleet.cli.local import LocalRun
    from rollfleet.cli.local import run as run_here
    from rollfleet.cli.stop_signal import until_signal
    from rollfleet.cli.validate import check_environment
    from rollfleet_api.documents import read_job

    if arguments and not learner:
        raise typer.BadParameter(cluster_commands.NO_LEARNER)
    if ui_port and not ui:
        raise typer.BadParameter("there is no page: add --ui", param_hint="--ui-port")
    known = _with(read_job(job), workers=workers, seed=seed)
    check_environment(known, origin=str(job))
    display = Display(Console(highlight=False))
    if learner is None:
        display.event("no learner: batches are counted, and nothing is trained; to train, add `--learner learner.py`")
    if known.spec.template:
        display.event("`template` is about pods: its variables, volumes and containers have no effect on this machine")
    local = LocalRun(
        job=known,
        folder=job.resolve().parent,
        learner=(str(learner), *(arguments or ())) if learner else (),
        nats_url=nats,
        display=display,
    )
    if ui:
        from rollfleet.cli.ui import run_with_page

        raise typer.Exit(asyncio.run(until_signal(run_with_page(local, port=ui_port))))
    raise typer.Exit(asyncio.run(until_signal(run_here(local))))


def _with(job: "CollectorJob", *, workers: int | None, seed: int | None) -> "CollectorJob":
    from rollfleet_api.validation import parse_job

    data: dict[str, Any] = job.dump()
    if workers is not None:
        data["spec"]["workers"] = workers
    if seed is not None:
        data["spec"].setdefault("collect", {})["seed"] = seed
    return parse_job(data, origin="with the options of the command line")


class Starter(StrEnum):
    """A set of files that `rollfleet init` writes."""

    PPO = "ppo"
    CUSTOM_ENV = "custom-env"
    SAC = "sac"
    DQN = "dqn"
    ATARI = "atari"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write into.", file_okay=False)] = Path(),
    example: Annotated[
        Starter,
        typer.Option(
            help="`ppo`: CartPole. `custom-env`: an environment and a policy in files of your own. `sac`: Pendulum, "
            "with a replay buffer. `dqn`: CartPole, with a prioritised buffer of TorchRL (`pip install torchrl`). "
            "`atari`: Pong, from images."
        ),
    ] = Starter.PPO,
) -> None:
    """Write a job and its learner, ready for `rollfleet run`, `rollfleet submit` and `kubectl apply -k`."""
    from rollfleet.cli.starters import write

    for path in write(example, folder):
        typer.echo(f"wrote {path}")
    where = "" if folder == Path() else f"cd {folder} && "
    typer.echo(f"run it here:      {where}rollfleet run job.yaml --learner learner.py")
    typer.echo(f"or on a cluster:  {where}rollfleet submit job.yaml --learner learner.py --follow")


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(help="YAML files of one or more jobs; `-` reads standard input.")],
) -> None:
    """Check jobs: report each mistake with its place, its cause and a correction. Exit with 1 if there is any."""
    from rollfleet.cli.validate import validate as check

    raise typer.Exit(check(files, stdin=sys.stdin, out=sys.stdout))


@app.command()
def worker(
    index: Annotated[int | None, typer.Option(min=0, help="Index of this worker in the job.")] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job, or `namespace/name`.")] = None,
    nats: Annotated[str | None, typer.Option(help="URL of the NATS server.")] = None,
    credentials: Annotated[Path | None, typer.Option(help="A NATS credentials file.", exists=True)] = None,
    evaluation: Annotated[bool, typer.Option("--evaluation", help="Run one of the job's evaluation workers.")] = False,
    threads: Annotated[int, typer.Option(min=0, envvar=THREADS, help="Threads of torch. 0: one for each CPU.")] = 0,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for NATS, and then for the job.")] = 60.0,
) -> None:
    """Run one worker of a job, on any machine that reaches its NATS server.

    Options that are not given are read from environment variables.
    """
    from rollfleet.system.process_setup import exit_on_sigterm

    exit_on_sigterm()  # before the imports below, which take seconds
    from rollfleet_api.address import Address, worker_index
    from rollfleet_api.subjects import Subjects

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        address = Address.read(os.environ, url=nats, job=job, credentials=credentials)
        Subjects.parse(address.job)
        number = worker_index(os.environ) if index is None else index
    except ValueError as error:
        from rollfleet_api.exit_codes import EXIT_PERMANENT

        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_PERMANENT) from None
    from rollfleet.cli.worker_program import main

    raise typer.Exit(main(address, number, evaluation=evaluation, threads=threads, timeout_s=timeout))


@app.command()
def env_server(
    certificate: Annotated[
        Path,
        typer.Option(
            envvar=CERTIFICATE,
            help="PEM file with a private key and a certificate for the name `environments`. Vectors need it, too: who "
            "has it runs programs here.",
            exists=True,
            dir_okay=False,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = PORT,
    idle_timeout: Annotated[
        float, typer.Option(min=0, help="End after this many seconds without a vector. 0: never.")
    ] = 0.0,
) -> None:
    """Hold environments for `rollfleet.make_vec(..., servers=[...])` on other hosts, until Ctrl-C."""
    from rollfleet.system.process_setup import exit_on_sigterm

    exit_on_sigterm()
    from rollfleet.envs.host import host

    host(port, certificate, idle_timeout_s=idle_timeout)


@app.command()
def record(
    job: Annotated[str | None, typer.Argument(help="Name of the job, or `namespace/name`.")] = None,
    to: Annotated[Path, typer.Option(help="Folder for the recorded batches.", file_okay=False)] = Path("recording"),
    nats: Annotated[str | None, typer.Option(help="URL of the NATS server.")] = None,
    credentials: Annotated[
        Path | None, typer.Option(help="A NATS credentials file of the job's learner.", exists=True)
    ] = None,
    segment_size: Annotated[str, typer.Option(help="Maximum size of one file, such as `64Mi`.")] = "64Mi",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for NATS, and then for the job.")] = 60.0,
) -> None:
    """Write every batch of a job to disk until the job ends or Ctrl-C. The learner keeps running.

    `rollfleet.Recording(FOLDER)` iterates over the recorded batches. Options that are not given are read from
    environment variables.
    """
    from rollfleet.recording.recorder import record as begin
    from rollfleet.system.process_setup import exit_by_signal
    from rollfleet_api.quantity import parse_bytes

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        segment_bytes = parse_bytes(segment_size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--segment-size") from None
    recorder = begin(job, to, address=nats, credentials=credentials, segment_bytes=segment_bytes, timeout_s=timeout)
    code: int | str | None = 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, exit_by_signal)
    with recorder:  # a second signal ends this, too: batches of the last seconds are lost
        try:
            print(f"recording {recorder.job.key} to {to}", flush=True)
            recorder.wait()
        except SystemExit as stopped:
            code = stopped.code
    counts = recorder.counts()
    print(
        f"recorded {counts.batches:,} batches, {counts.frames:,} frames, {counts.bytes / 1e6:,.1f} MB; "
        f"{counts.missed:,} missed, {counts.corrupt:,} unreadable"
    )
    sys.exit(code)


@app.command()
def plot(
    curve: Annotated[Path, typer.Argument(help="A CSV file written by a learner.", exists=True, dir_okay=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Image file. Default: a PNG beside the CSV.")
    ] = None,
) -> None:
    """Draw a learning curve as an image."""
    from rollfleet.progress import draw

    picture = output or curve.with_suffix(".png")
    draw(curve, picture)
    typer.echo(str(picture))


@app.command()
def ui(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder of saved runs. Default: the jobs of a cluster.", exists=True, file_okay=False),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page. Default: a free one.", show_default=False)
    ] = 0,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the operator. Default: rollfleet.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="Bearer token for the operator. Default: that of the kubeconfig's user.")
    ] = None,
    context: cluster_commands.Context = None,
    kubeconfig: cluster_commands.Kubeconfig = None,
) -> None:
    """Show the jobs of a cluster in a browser, or saved runs, until Ctrl-C.

    `rollfleet run --ui` and `rollfleet.track(collector, to="page")` save runs into `runs`.
    """
    from rollfleet.cli.stop_signal import until_signal

    if folder is None:
        from rollfleet.cli.cluster_page import show_cluster

        work = show_cluster(
            typer.echo, port=port, namespace=namespace, token=token, context=context, kubeconfig=kubeconfig
        )
    else:
        from rollfleet.cli.ui import show_saved

        if namespace or token or context or kubeconfig:
            raise typer.BadParameter("FOLDER takes no cluster: leave out --namespace, --token, --context, --kubeconfig")
        work = show_saved(folder, port=port, show=typer.echo)
    raise typer.Exit(asyncio.run(until_signal(work)))


app.command()(play)
app.add_typer(cluster_commands.app)


def main() -> None:
    """Run the command, also as a plugin of kubectl."""
    command = typer.main.get_command(app)
    if Path(sys.argv[0]).stem == "kubectl-rollfleet":  # shells complete `kubectl`, not its plugins
        command.params = [each for each in command.params if not (each.name or "").endswith("_completion")]
        command.main(prog_name="kubectl rollfleet")
    command.main()

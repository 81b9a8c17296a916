"""The `rollfleet` command. Each subcommand loads what it needs and no more: `validate` starts without torch."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollfleet.cli import kubectl_commands

if TYPE_CHECKING:
    from rollfleet.cli.local import LocalRun
    from rollfleet_api.job import CollectorJob

EXIT_OF_SIGNALS = 128  # as a shell tells of a program that a signal ended: 130 after Ctrl-C

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Collect reinforcement-learning data: run a CollectorJob here, check one, or look after those of a cluster.",
)


@app.command(context_settings={"allow_interspersed_args": True})
def run(
    job: Annotated[Path, typer.Argument(help="The job's YAML file.", exists=True, dir_okay=False)],
    learner: Annotated[
        Path | None,
        typer.Option(
            help="A Python script that iterates over the job. Default: batches are only counted.", exists=True
        ),
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="For the learner, after `--`.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Instead of the job's `workers`.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the job's `collect.seed`.")] = None,
    nats: Annotated[str | None, typer.Option(help="URL of a NATS server to use. Default: an embedded one.")] = None,
) -> None:
    """Run a job on this machine: nats-server, workers and, where one is named, the learner."""
    from rich.console import Console

    from rollfleet.cli.display import Display
    from rollfleet.cli.local import EXIT_FAILURE, LocalRun
    from rollfleet.errors import RollfleetError
    from rollfleet_api.validation import JobErrors

    try:
        known = _with(_only_job(job), workers=workers, seed=seed)
    except JobErrors as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_FAILURE) from None
    display = Display(Console(highlight=False))
    local = LocalRun(
        job=known,
        folder=job.resolve().parent,
        learner=(str(learner), *(arguments or ())) if learner else (),
        nats_url=nats,
        display=display,
    )
    try:
        code = asyncio.run(_until_signal(local))
    except RollfleetError as error:
        display.error(str(error))
        code = EXIT_FAILURE
    raise typer.Exit(code)


def _only_job(path: Path) -> "CollectorJob":
    from rollfleet_api.documents import read_jobs

    jobs = read_jobs(path.read_text(), origin=str(path))
    if len(jobs) != 1:
        raise typer.BadParameter(f"{path} holds {len(jobs)} jobs; put the one to run into a file of its own")
    return jobs[0]


def _with(job: "CollectorJob", *, workers: int | None, seed: int | None) -> "CollectorJob":
    """The job, with what the command line says instead."""
    from rollfleet_api.validation import parse_job

    spec = job.spec
    if workers is not None:
        spec = spec.model_copy(update={"workers": workers})
    if seed is not None:
        spec = spec.model_copy(update={"collect": spec.collect.model_copy(update={"seed": seed})})
    changed = job.model_copy(update={"spec": spec})
    return parse_job(changed.dump(), origin="with what the command line says")  # a copy's values are not checked


async def _until_signal(local: "LocalRun") -> int:
    from rollfleet.cli.local import run

    running = asyncio.ensure_future(run(local))
    told: list[int] = []

    def stop(number: int) -> None:
        told.append(number)
        if len(told) == 1:  # once more would cut the way out short, and leave something behind
            running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await running
    except asyncio.CancelledError:
        return EXIT_OF_SIGNALS + told[0]


@app.command()
def validate(
    files: Annotated[list[str], typer.Argument(help="YAML files with one or more jobs each; `-` is standard input.")],
) -> None:
    """Check jobs. Says for each mistake where it is, what is wrong, and what to write; exits with 1 if there is any."""
    from rollfleet.cli.validate import validate as check

    raise typer.Exit(check(files, stdin=sys.stdin, out=sys.stdout))


@app.command()
def worker(
    index: Annotated[int | None, typer.Option(min=0, help="Which worker of the job this is.")] = None,
    job: Annotated[str | None, typer.Option(help="The job's name, or `namespace/name`.")] = None,
    nats: Annotated[str | None, typer.Option(help="URL of the NATS server.")] = None,
    credentials: Annotated[Path | None, typer.Option(help="A NATS credentials file.", exists=True)] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for NATS, and then for the job.")] = 60.0,
) -> None:
    """Work for a job, from any machine that reaches its NATS server. The environment says what is not said here."""
    from rollfleet.system.container_init import heed_sigterm

    heed_sigterm()  # before the imports, which take seconds
    from rollfleet.nats.lean_import import import_nats
    from rollfleet_api.environment import Address, EnvironmentIncomplete, worker_index

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        address = Address.read(os.environ, url=nats, job=job).with_credentials(credentials)
        number = worker_index(os.environ) if index is None else index
    except EnvironmentIncomplete as error:
        from rollfleet.cli.worker_program import EXIT_HOPELESS

        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_HOPELESS) from None
    import_nats(address.url)  # before whatever else would
    from rollfleet.cli.worker_program import main

    raise typer.Exit(main(address, number, timeout_s=timeout))


@app.command()
def record(
    job: Annotated[str | None, typer.Argument(help="The job's name, or `namespace/name`.")] = None,
    to: Annotated[Path, typer.Option(help="The folder that batches are written to.", file_okay=False)] = Path(
        "recording"
    ),
    nats: Annotated[str | None, typer.Option(help="URL of the NATS server.")] = None,
    credentials: Annotated[
        Path | None, typer.Option(help="A NATS credentials file, of a learner.", exists=True)
    ] = None,
    segment_size: Annotated[str, typer.Option(help="Of one file, at most: `256Mi`.")] = "256Mi",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for NATS, and then for the job.")] = 60.0,
) -> None:
    """Write every batch of a job to disk, beside its learner, until the job ends or Ctrl-C.

    `rollfleet.Recording(FOLDER)` iterates over them. The environment says what is not said here.
    """
    from rollfleet.recording.record_program import EXIT_FAILURE, main
    from rollfleet_api.environment import Address, EnvironmentIncomplete
    from rollfleet_api.quantity import parse_bytes

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        segment_bytes = parse_bytes(segment_size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--segment-size") from None
    try:
        address = Address.read(os.environ, url=nats, job=job).with_credentials(credentials)
    except EnvironmentIncomplete as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_FAILURE) from None
    raise typer.Exit(main(address, to, segment_bytes=segment_bytes, timeout_s=timeout))


@app.command()
def plot(
    curve: Annotated[Path, typer.Argument(help="A CSV file that a learner wrote.", exists=True, dir_okay=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: beside the CSV, as PNG.")] = None,
) -> None:
    """Draw a learning curve as a picture."""
    from rollfleet.errors import RollfleetError
    from rollfleet.progress import draw

    picture = output or curve.with_suffix(".png")
    try:
        draw(curve, picture)
    except RollfleetError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    typer.echo(str(picture))


app.add_typer(kubectl_commands.app)


def main() -> None:
    """The command's entry, also as kubectl's plugin."""
    plugin = Path(sys.argv[0]).stem == "kubectl-rollfleet"
    app(prog_name="kubectl rollfleet" if plugin else None)

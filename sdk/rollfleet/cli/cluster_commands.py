"""The commands for jobs on a cluster, such as `rollfleet top` or `kubectl rollfleet top`: `rollfleet.Jobs` as text.

Those that show jobs show saved runs of this machine, too.
"""

import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rollfleet.cluster.jobs import Jobs
    from rollfleet_api.job import CollectorJob

app = typer.Typer()
NO_LEARNER = "a learner is named by --learner, and its arguments come after `--`"

Job = Annotated[str, typer.Argument(help="Name of the job, or `namespace/name`.")]
JobOrRun = Annotated[
    str,
    typer.Argument(help="Name of the job, or `namespace/name`; or a folder of saved runs, of which the newest counts."),
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace. Default: that of the context.")]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Default: `KUBECONFIG`, or ~/.kube/config.", exists=True, dir_okay=False)
]


@app.command()
def top(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of jobs, `namespace/name`, or folders of saved runs. A single job is shown with its workers. "
            "Default: all jobs of the cluster."
        ),
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show all namespaces.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two updates.")] = 2.0,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the jobs of a cluster, or saved runs, on a terminal until Ctrl-C."""
    from rollfleet.cli.local_runs import described, runs_in, view
    from rollfleet.cli.top import overview, show

    cluster = cache(partial(_jobs, context, namespace, kubeconfig))  # runs need none

    def read() -> "RenderableType":
        saved = {name: runs_in(name) for name in jobs or ()}
        runs = [run for each in saved.values() for run in each]
        names = [name for name, each in saved.items() if not each]
        if len(runs) + len(names) == 1:
            only = described(runs[0]) if runs else cluster().describe(names[0])
            return overview([only.job], only.pods, only.time)
        found = [*map(view, runs), *(cluster().get(name) for name in names)]
        found = found if jobs else [*cluster().list(all_namespaces=all_namespaces)]
        return overview(found, None, datetime.now(UTC), all_namespaces=all_namespaces)

    with suppress(KeyboardInterrupt):
        show(_console(), read, every_s=every)


@app.command()
def doctor(context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Check this machine and the cluster, and say what to do. Exit with 1 if something is wrong."""
    from rollfleet.cli.doctor import Verdict, findings

    wrong = False
    for finding in findings(lambda: _jobs(context, namespace, kubeconfig)):
        typer.echo(str(finding))
        wrong = wrong or finding.verdict is Verdict.WRONG
    raise typer.Exit(int(wrong))


@app.command()
def describe(
    job: JobOrRun, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None
) -> None:
    """Explain what is wrong with a job of a cluster, or a saved run, and how to fix it."""
    from rollfleet.cli.local_runs import described, runs_in

    runs = runs_in(job)
    _console().print(described(runs[-1]) if runs else _jobs(context, namespace, kubeconfig).describe(job))


@app.command(context_settings={"allow_interspersed_args": True})
def submit(
    job: Annotated[Path, typer.Argument(help="The job's YAML file.", exists=True, dir_okay=False)],
    learner: Annotated[
        Path | None,
        typer.Option(
            help="A Python script that runs as a pod of the job. It is sent, with the modules of yours that it and the "
            "job import. Default: the job's own `learner`, or none.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the learner, after `--`.")] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Keep what the learner writes into its working folder, /kept, on a volume of this size, such as 1Gi. "
            "`rollfleet fetch` copies it. It is deleted with the job. Default: its files are lost with its pod.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show the learner's log until the job ends.")] = False,
    nats: Annotated[
        str | None,
        typer.Option(help="URL of a NATS server, instead of a cluster: publish the job there until it is complete."),
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option(help="A NATS credentials file, for --nats.", exists=True, dir_okay=False)
    ] = None,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Submit a job to a cluster, or change it there, like `kubectl apply`; or publish it on a NATS server."""
    from rollfleet_api.documents import read_job

    if arguments and not learner:
        raise typer.BadParameter(NO_LEARNER)
    if keep is not None and not learner:
        raise typer.BadParameter("--keep keeps the files of --learner: add it, or mount a volume in `learner.template`")
    if credentials and not nats:
        raise typer.BadParameter("--credentials are those of --nats: add it")
    known, sources = read_job(job), None
    if nats:
        if learner or follow or context or namespace or kubeconfig:
            raise typer.BadParameter("--nats takes no cluster and no learner: start the learner yourself")
        raise typer.Exit(_keep(known, nats, credentials))
    from rollfleet.cli.submit import follow as show_log
    from rollfleet.cli.submit import with_learner
    from rollfleet.cluster.kept_files import claim_for, claim_of, create_claim, mounted
    from rollfleet.errors import JobEnded
    from rollfleet_api.diagnosis import diagnose

    jobs = _jobs(context, namespace, kubeconfig)
    claim = claim_for(jobs, known, keep) if learner or known.spec.learner else None
    if learner:
        known, sources = with_learner(known, job.resolve().parent, learner, arguments or ())
        typer.echo(f"sending {', '.join(sorted(sources.files))}", err=True)
    submitted = jobs.submit(mounted(known, claim) if claim else known, sources=sources)
    key = submitted.key
    if keep and claim and not create_claim(jobs, submitted, claim, keep):
        typer.echo(f"the volume of {key} keeps its size", err=True)
    if submitted.status.has_ended(submitted.metadata.generation):
        first = f"`rollfleet fetch {key}` first, then " if claim_of(submitted) else ""
        again = f"an unchanged spec starts nothing: {first}`rollfleet delete {key}`, and submit it again"
        raise JobEnded(f"{key} is {diagnose(submitted)}; {again}")
    typer.echo(f"{key} submitted", err=follow)
    if follow:
        raise typer.Exit(show_log(jobs, key, typer.echo, lambda state: typer.echo(state, err=True)))


@app.command()
def logs(
    job: JobOrRun,
    worker: Annotated[int | None, typer.Option(min=0, help="Show only this worker's log.")] = None,
    learner: Annotated[bool, typer.Option("--learner", help="Show only the learner's log.")] = False,
    container: Annotated[str | None, typer.Option(help="Show another container of the pods, e.g. a sidecar.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option(help="Number of last lines of each pod; -1 shows all.")] = -1,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the logs of the workers and the learner of a job, or the ends of those of a saved run."""
    from rollfleet.cli.local_runs import log_of, runs_in

    if learner and worker is not None:
        raise typer.BadParameter("--learner and --worker exclude each other: give one of them")
    last = None if tail < 0 else tail
    if runs := runs_in(job):
        if follow or container:
            raise typer.BadParameter(
                f"the folder {job} has saved runs: leave out --follow and --container, or name a cluster's job as "
                "`namespace/name`"
            )
        for text in log_of(runs[-1], worker=worker, learner=learner, tail=last):
            typer.echo(text)
        return
    jobs = _jobs(context, namespace, kubeconfig)
    for line in jobs.logs(job, worker=worker, learner=learner, container=container, follow=follow, tail=last):
        typer.echo(str(line))


@app.command()
def fetch(
    job: Job,
    to: Annotated[Path | None, typer.Option(help="A new folder for the files. Default: the job's name.")] = None,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Copy the files that `submit --keep` keeps to a new folder, by a worker that reads their volume."""
    from rollfleet.cli.fetch import fetch as copy

    if kubeconfig:
        os.environ["KUBECONFIG"] = str(kubeconfig)  # the collector's, too
    folder = to or Path(job.rpartition("/")[2])
    found = copy(_jobs(context, namespace, kubeconfig), job, folder, context=context)
    for name, there in found.items():
        if not there:
            typer.echo(f"{name!r} was deleted or changed while it was read, or cannot be read", err=True)
    count = sum(found.values())
    typer.echo(f"{count} file{'s' * (count != 1)} in {folder}")
    if count < len(found):
        typer.echo("fetch them again into another folder, with --to", err=True)
    raise typer.Exit(int(count < len(found)))


@app.command()
def scale(
    job: Job,
    workers: Annotated[int, typer.Argument(min=1, help="New number of workers.")],
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change a job's number of workers. The learner keeps running."""
    typer.echo(f"{_jobs(context, namespace, kubeconfig).scale(job, workers).key} scaled")


@app.command()
def suspend(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Stop a job's workers, and its learner if that is a pod, and free their resources."""
    typer.echo(f"{_jobs(context, namespace, kubeconfig).suspend(job).key} suspended")


@app.command()
def resume(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Start a suspended job again."""
    typer.echo(f"{_jobs(context, namespace, kubeconfig).resume(job).key} resumed")


@app.command()
def delete(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Delete a job, its pods, its Secrets, and the files that `submit --keep` keeps: `rollfleet fetch` them first."""
    _jobs(context, namespace, kubeconfig).delete(job)
    typer.echo(f"{job} deleted")


def _keep(job: "CollectorJob", nats: str, credentials: Path | None) -> int:
    import asyncio

    from rollfleet.cli.display import Display
    from rollfleet.cli.publication import keep
    from rollfleet.cli.stop_signal import until_signal
    from rollfleet_api.address import Address

    address = Address(url=nats, job=job.key, credentials=credentials)
    return asyncio.run(until_signal(keep(job, address, Display(_console()))))


def _jobs(context: str | None, namespace: str | None, kubeconfig: Path | None) -> "Jobs":
    from rollfleet.cluster.jobs import Jobs

    return Jobs(context=context, namespace=namespace, kubeconfig=kubeconfig)


def _console() -> "Console":
    from rich.console import Console

    from rollfleet.cluster.description import WIDTH

    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)

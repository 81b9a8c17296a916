"""The commands about jobs on a cluster: `rollfleet top`, or `kubectl rollfleet top`. They run kubectl, and need it."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rollfleet.cli.kubectl import Kubectl
    from rollfleet.cli.kubectl_objects import EventView, JobView, PodView

PLAIN_WIDTH = 2000  # where no terminal says how wide it is: nothing is cut
EXIT_INTERRUPTED = 130

app = typer.Typer()

Job = Annotated[str, typer.Argument(help="The job's name, or `namespace/name`.")]
Context = Annotated[str | None, typer.Option(help="The context of kubectl's configuration.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="kubectl's configuration.", exists=True, dir_okay=False)]


@app.command()
def top(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(help="Names, or `namespace/name`; of a single one, its workers too. Default: all jobs."),
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 2.0,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show how jobs do: live on a terminal, until Ctrl-C; once elsewhere."""
    from rollfleet.cli.kubectl import JOBS
    from rollfleet.cli.kubectl_objects import JobView
    from rollfleet.cli.top import picture, show

    with _kubectl(context, namespace, kubeconfig) as kubectl:
        asked = _by_namespace(jobs or []) or {None: ["--all-namespaces"] if all_namespaces else []}

        def look() -> "RenderableType":
            found: list[JobView] = []
            for where, which in asked.items():
                found += kubectl.within(where).get(JobView, JOBS, *which)
            pods = _pods(kubectl, found[0]) if len(jobs or []) == 1 else None
            return picture(found, pods, datetime.now(UTC))

        with suppress(KeyboardInterrupt):
            show(_console(), look, every_s=every)


@app.command()
def describe(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Tell of a job what is the matter and what to do, and then its numbers."""
    from rollfleet.cli.description import description

    with _job(job, context, namespace, kubeconfig) as (kubectl, seen):
        pods = _pods(kubectl, seen)
        events = _events(kubectl, seen, pods)
        _console().print(description(seen, pods, events, datetime.now(UTC)))


@app.command()
def logs(
    job: Job,
    worker: Annotated[int | None, typer.Option(min=0, help="This worker's alone.")] = None,
    learner: Annotated[bool, typer.Option("--learner", help="The learner's alone.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option(help="So many lines of each pod; -1: all.")] = -1,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what a job's workers and its learner wrote."""
    from rollfleet.cli.diagnosis import diagnose
    from rollfleet.cli.kubectl_objects import INDEX_LABEL, JOB_LABEL, ROLE_LABEL

    if learner and worker is not None:
        raise typer.BadParameter("--learner and --worker are two questions: ask one")
    with _job(job, context, namespace, kubeconfig) as (kubectl, seen):
        pods = _pods(kubectl, seen)
        selector = {JOB_LABEL: seen.metadata.name}
        if learner:
            selector[ROLE_LABEL] = "learner"
            pods = [pod for pod in pods if pod.worker is None]
        if worker is not None:
            selector |= {ROLE_LABEL: "worker", INDEX_LABEL: str(worker)}
            pods = [pod for pod in pods if pod.worker == worker]
        if not pods:
            found = diagnose(seen)
            whose = "the learner" if learner else f"worker {worker}" if worker is not None else "the job"
            typer.echo(f"{whose} has no pod: {seen.key} is {found.state}. {found.message}", err=True)
            raise typer.Exit(1)
        code = kubectl.show(
            "logs",
            f"--selector={','.join(f'{name}={value}' for name, value in selector.items())}",
            "--prefix",
            f"--tail={tail}",
            f"--follow={str(follow).lower()}",
            f"--max-log-requests={len(pods)}",
        )
    raise typer.Exit(code)


@app.command()
def scale(
    job: Job,
    workers: Annotated[int, typer.Argument(min=1, help="Workers that there are to be.")],
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Give a job another number of workers, while its learner goes on."""
    from rollfleet.cli.kubectl import JOBS

    with _kubectl(context, namespace, kubeconfig) as kubectl:
        where, name = _parts(job)
        typer.echo(kubectl.within(where).ask("scale", f"{JOBS}/{name}", f"--replicas={workers}"), nl=False)


@app.command()
def suspend(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Stop a job's workers, and its learner where that is a pod; free what they use."""
    _set_suspend(job, True, context, namespace, kubeconfig)


@app.command()
def resume(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Start again what was suspended."""
    _set_suspend(job, False, context, namespace, kubeconfig)


def _set_suspend(job: str, suspend: bool, context: str | None, namespace: str | None, kubeconfig: Path | None) -> None:
    from rollfleet.cli.kubectl import JOBS

    patch = json.dumps({"spec": {"suspend": suspend}})
    with _kubectl(context, namespace, kubeconfig) as kubectl:
        where, name = _parts(job)
        said = kubectl.within(where).ask("patch", JOBS, name, "--type=merge", f"--patch={patch}")
        typer.echo(said, nl=False)


@contextmanager
def _kubectl(context: str | None, namespace: str | None, kubeconfig: Path | None) -> Iterator["Kubectl"]:
    """The cluster, and its refusals as messages."""
    from rollfleet.cli.kubectl import Kubectl
    from rollfleet.errors import KubectlFailed, KubectlMissing

    try:
        yield Kubectl.find(context=context, namespace=namespace, kubeconfig=kubeconfig)
    except (KubectlFailed, KubectlMissing) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def _job(
    job: str, context: str | None, namespace: str | None, kubeconfig: Path | None
) -> Iterator[tuple["Kubectl", "JobView"]]:
    """A job that is there, and a kubectl in its namespace."""
    from rollfleet.cli.kubectl import JOBS
    from rollfleet.cli.kubectl_objects import JobView

    with _kubectl(context, namespace, kubeconfig) as kubectl:
        where, name = _parts(job)
        (seen,) = kubectl.within(where).get(JobView, JOBS, name)
        yield kubectl.within(seen.metadata.namespace), seen


def _pods(kubectl: "Kubectl", job: "JobView") -> list["PodView"]:
    from rollfleet.cli.kubectl_objects import JOB_LABEL, PodView

    there = kubectl.within(job.metadata.namespace)
    return there.get(PodView, "pods", f"--selector={JOB_LABEL}={job.metadata.name}")


def _events(kubectl: "Kubectl", job: "JobView", pods: Sequence["PodView"]) -> list["EventView"]:
    """Of the job, and of its pods that are there now."""
    from rollfleet.cli.kubectl_objects import EventView

    about = {job.metadata.uid, *(pod.metadata.uid for pod in pods)}
    return [event for event in kubectl.get(EventView, "events") if event.involved_object.uid in about]


def _parts(job: str) -> tuple[str | None, str]:
    """The namespace, if it is named, and the name."""
    namespace, _, name = job.rpartition("/")
    return namespace or None, name


def _by_namespace(jobs: Sequence[str]) -> dict[str | None, list[str]]:
    named: dict[str | None, list[str]] = defaultdict(list)
    for where, name in map(_parts, jobs):
        named[where].append(name)
    return named


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)

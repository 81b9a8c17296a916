"""The commands for jobs on a cluster, such as `rollfleet top` or `kubectl rollfleet top`. They need kubectl."""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rollfleet.cli.kubectl import Kubectl
    from rollfleet.cli.kubectl_objects import EventView, JobView, PodView

PLAIN_WIDTH = 2000  # columns when piped, so that no line is cut

app = typer.Typer()

Job = Annotated[str, typer.Argument(help="Name of the job, or `namespace/name`.")]
Context = Annotated[str | None, typer.Option(help="Context of kubectl's configuration.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace. Default: that of the context.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Configuration file of kubectl.", exists=True, dir_okay=False)]


@app.command()
def top(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of jobs, or `namespace/name`. A single job is shown with its workers. Default: all jobs."
        ),
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show all namespaces.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two updates.")] = 2.0,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show job status, live on a terminal (Ctrl-C to stop); print once when piped."""
    from rollfleet.cli.kubectl import JOBS
    from rollfleet.cli.kubectl_objects import JobView
    from rollfleet.cli.top import overview, show

    kubectl = _kubectl(context, namespace, kubeconfig)
    selected = _by_namespace(jobs or []) or {None: ["--all-namespaces"] if all_namespaces else []}

    def read() -> "RenderableType":
        found: list[JobView] = []
        for where, names in selected.items():
            found += kubectl.within(where).get(JobView, JOBS, *names)
        pods = _pods(kubectl, found[0]) if len(jobs or []) == 1 else None
        return overview(found, pods, datetime.now(UTC))

    with suppress(KeyboardInterrupt):
        show(_console(), read, every_s=every)


@app.command()
def doctor(context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Check this machine and the cluster, and say what to do. Exit with 1 if something is wrong."""
    from rollfleet.cli.doctor import Verdict, findings

    wrong = False
    for finding in findings({"context": context, "namespace": namespace, "kubeconfig": kubeconfig}):
        typer.echo(str(finding))
        wrong = wrong or finding.verdict is Verdict.WRONG
    raise typer.Exit(int(wrong))


@app.command()
def describe(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Explain what is wrong with a job and how to fix it, then show its counters."""
    from rollfleet.cli.description import description

    kubectl, seen = _job(job, context, namespace, kubeconfig)
    pods = _pods(kubectl, seen)
    events = _events(kubectl, seen, pods)
    _console().print(description(seen, pods, events, datetime.now(UTC)))


@app.command()
def logs(
    job: Job,
    worker: Annotated[int | None, typer.Option(min=0, help="Show only this worker's log.")] = None,
    learner: Annotated[bool, typer.Option("--learner", help="Show only the learner's log.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option(help="Number of last lines of each pod; -1 shows all.")] = -1,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the logs of a job's workers and its learner."""
    from rollfleet.cli.diagnosis import diagnose
    from rollfleet_api.kubernetes_names import INDEX_LABEL, JOB_LABEL, ROLE_LABEL

    if learner and worker is not None:
        raise typer.BadParameter("--learner and --worker exclude each other: give one of them")
    kubectl, seen = _job(job, context, namespace, kubeconfig)
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
        subject = "the learner" if learner else f"worker {worker}" if worker is not None else "the job"
        typer.echo(f"{subject} has no pod: {seen.key} is {found.state}. {found.message}", err=True)
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
    workers: Annotated[int, typer.Argument(min=1, help="New number of workers.")],
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change a job's number of workers. The learner keeps running."""
    from rollfleet.cli.kubectl import JOBS

    where, name = _parts(job)
    kubectl = _kubectl(context, namespace, kubeconfig).within(where)
    typer.echo(kubectl.ask("scale", f"{JOBS}/{name}", f"--replicas={workers}"), nl=False)


@app.command()
def suspend(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Stop a job's workers, and its learner if that is a pod, and free their resources."""
    _set_suspend(job, True, context, namespace, kubeconfig)


@app.command()
def resume(job: Job, context: Context = None, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Start a suspended job again."""
    _set_suspend(job, False, context, namespace, kubeconfig)


def _set_suspend(job: str, suspend: bool, context: str | None, namespace: str | None, kubeconfig: Path | None) -> None:
    from rollfleet.cli.kubectl import JOBS

    patch = json.dumps({"spec": {"suspend": suspend}})
    where, name = _parts(job)
    kubectl = _kubectl(context, namespace, kubeconfig).within(where)
    typer.echo(kubectl.ask("patch", JOBS, name, "--type=merge", f"--patch={patch}"), nl=False)


def _kubectl(context: str | None, namespace: str | None, kubeconfig: Path | None) -> "Kubectl":
    from rollfleet.cli.kubectl import Kubectl

    return Kubectl.find(context=context, namespace=namespace, kubeconfig=kubeconfig)


def _job(job: str, context: str | None, namespace: str | None, kubeconfig: Path | None) -> tuple["Kubectl", "JobView"]:
    """Return an existing job, and a kubectl for its namespace."""
    from rollfleet.cli.kubectl import JOBS
    from rollfleet.cli.kubectl_objects import JobView

    kubectl = _kubectl(context, namespace, kubeconfig)
    where, name = _parts(job)
    (seen,) = kubectl.within(where).get(JobView, JOBS, name)
    return kubectl.within(seen.metadata.namespace), seen


def _pods(kubectl: "Kubectl", job: "JobView") -> list["PodView"]:
    from rollfleet.cli.kubectl_objects import PodView
    from rollfleet_api.kubernetes_names import JOB_LABEL

    inside = kubectl.within(job.metadata.namespace)
    return inside.get(PodView, "pods", f"--selector={JOB_LABEL}={job.metadata.name}")


def _events(kubectl: "Kubectl", job: "JobView", pods: Sequence["PodView"]) -> list["EventView"]:
    """Get the events about the job and its present pods."""
    from rollfleet.cli.kubectl_objects import EventView

    subjects = {job.metadata.uid, *(pod.metadata.uid for pod in pods)}
    return [event for event in kubectl.get(EventView, "events") if event.involved_object.uid in subjects]


def _parts(job: str) -> tuple[str | None, str]:
    """Split `namespace/name`; the namespace is optional."""
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

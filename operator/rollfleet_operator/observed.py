"""A job's observed children, parsed. No other module reads the API server's objects."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.state.processes import Processes, Run
from rollfleet_api.times import parse_time
from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest, Ref, ref
from rollfleet_operator.revision import learner_revision, workers_revision
from rollfleet_operator.scheduler import is_held

log = logging.getLogger(__name__)

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Processes):
    """The observed children of a job: its processes, and the objects around them.

    Attributes:
        children: Objects owned by the job itself. The Kubernetes Jobs among them are the runs.
        occupied: Whether a worker or a learner has not finished, also one of a run that is gone.
        source_digest: Digest of the files in the job's ConfigMap; empty: the job has none; None: unknown.
    """

    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    occupied: bool = False
    source_digest: str | None = ""

    @property
    def installation(self) -> str:
        """The installation that runs the job, as `names.INSTALLATION` says; empty: none does yet."""
        accounts = (child for which, child in self.children.items() if which.kind == "ServiceAccount")
        return next((installation_of(each) for each in accounts), "")

    @property
    def server(self) -> Manifest | None:
        """The Deployment of the job's NATS server; None: it has none."""
        return next((child for which, child in self.children.items() if which.kind == "Deployment"), None)

    @property
    def server_ready(self) -> bool:
        """Whether the job's NATS server is ready."""
        return bool(self.server and (self.server.get("status") or {}).get("readyReplicas"))

    @property
    def public_host(self) -> str:
        """The address of the server's load balancer; empty: none yet, or a name inside of the cluster."""
        services = (child for which, child in self.children.items() if which.kind == "Service")
        balancers = [(each.get("status") or {}).get("loadBalancer") or {} for each in services]
        given = [each for balancer in balancers for each in balancer.get("ingress") or []]
        found = next((str(each.get("hostname") or each.get("ip") or "") for each in given), "")
        return "" if ".svc." in f"{found.lower()}." else found


def observe(
    job: CollectorJob,
    children: Iterable[Manifest],
    pods: Iterable[Pod],
    *,
    refused_pods: str = "",
    source_digest: str | None = "",
) -> Observed:
    """Parse a job's children, and pass over all objects and pods that do not belong to them."""
    children, pods = list(children), list(pods)
    found = [(child, parsed(run_of, child) if child["kind"] == "Job" else None) for child in children]
    runs = sorted((run for _, run in found if run), key=lambda run: (run.created_s, run.uid))
    uids = {run.uid for run in runs}
    observed = Observed(
        children={ref(child): child for child, run in found if run or child["kind"] != "Job"},
        runs=tuple(runs),
        current=_current(job, runs, source_digest),
        pods=tuple(
            sorted((pod for pod in pods if pod.run in uids or pod.role is Role.NATS), key=lambda pod: pod.index)
        ),
        occupied=any(pod.role is not Role.NATS and not pod.finished for pod in pods),
        refused_pods=refused_pods or next((refused for child in children if (refused := _refused(child))), ""),
        source_digest=source_digest,
    )
    return replace(observed, server_starts=observed.server is not None and not observed.server_ready)


def run_of(manifest: Manifest) -> Run:
    """Parse a Kubernetes Job of the API server.

    Raises:
        ValueError: It is not a Job of workers or a learner.
    """
    metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
    held = {each["type"]: each for each in status.get("conditions") or [] if each["status"] == "True"}
    failed = held.get("Failed")
    return Run(
        name=metadata["name"],
        role=names.Workload.parse(metadata["name"]).role,
        uid=metadata["uid"],
        pods=spec.get("parallelism", 1),
        ready=status.get("ready", 0),
        per_worker=int((metadata.get("annotations") or {}).get(names.PER_WORKER, 0)),
        suspended=spec.get("suspend", False),
        held=is_held(metadata.get("labels") or {}),
        complete="Complete" in held,
        failed=failed.get("message", "") if failed else None,
        deleting="deletionTimestamp" in metadata,
        created_s=parse_time(metadata["creationTimestamp"]),
        restarts=status.get("failed", 0),
    )


def _current(job: CollectorJob, runs: Sequence[Run], source_digest: str | None) -> dict[Role, Run]:
    """Return the runs of the present revisions, but that of evaluation: the newest ones if the files are unknown."""
    revisions = {Role.WORKER: workers_revision} | ({Role.LEARNER: learner_revision} if job.spec.learner else {})
    revisions |= {Role.ENV_SERVER: workers_revision} if job.spec.env.servers else {}
    found = [run for run in runs if run.role in revisions and not run.deleting]
    if source_digest is not None:
        name = job.metadata.name
        wanted = {str(names.Workload(name, role, of(job, source_digest))) for role, of in revisions.items()}
        found = [run for run in found if run.name in wanted]
    return {run.role: run for run in found}


def installation_of(child: Manifest) -> str:
    """Return the installation that an object names; empty: none."""
    return str((child["metadata"].get("annotations") or {}).get(names.INSTALLATION, ""))


def _refused(child: Manifest) -> str:
    """Return why the API server refuses the pod of a Deployment, in its words; empty: it does not."""
    conditions = (child.get("status") or {}).get("conditions") or [] if child["kind"] == "Deployment" else []
    return next((each.get("message", "") for each in conditions if each["type"] == "ReplicaFailure"), "")


def parsed(parse: Callable[[Manifest], P], manifest: Manifest) -> P | None:
    """Return a parsed object; None: it is not one of the operator's, or a user has changed it beyond recognition."""
    try:
        return parse(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.debug("ignored %s in %s: %r", ref(manifest), manifest["metadata"].get("namespace"), error)
        return None

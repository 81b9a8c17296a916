"""The work behind `rollfleet submit` on a cluster: the learner as a pod of its job, its source, and its output."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rollfleet.cli.error_lines import EXIT_FAILURE
from rollfleet.cli.validate import entrypoints, importing_from
from rollfleet.cluster.jobs import Jobs
from rollfleet.cluster.patience import AGAIN_S, AWAY_S, answered
from rollfleet.cluster.refusals import passes
from rollfleet.cluster.sources import Sources
from rollfleet.errors import ClusterError, JobEnded, JobInvalid
from rollfleet_api.diagnosis import diagnose
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.status import ConditionType
from rollfleet_api.validation import parse_job
from rollfleet_api.views import JobView


def with_learner(
    job: CollectorJob, folder: Path, learner: Path, arguments: Sequence[str] = ()
) -> tuple[CollectorJob, Sources]:
    """Return a job that runs a learner as a pod, and the modules that its pods need.

    Its own `learner.template` and `source` stay. The modules that it names may lie in `folder`, that of the job's file.

    Raises:
        JobInvalid: The template runs another program, or pods would find another module by the learner's name.
    """
    data: dict[str, Any] = job.dump()
    sources = Sources()
    spec = job.spec
    named = (*entrypoints(spec.env, spec.policy, spec.collect, spec.weights).values(), spec.env.id or "")
    with importing_from(learner.resolve().parent), importing_from(folder):
        for module in (learner.stem, *(name.partition(":")[0] for name in named if ":" in name)):
            sources.keep(module)
    if sources.files.get(learner.name) != learner.read_text(encoding="utf-8"):
        raise JobInvalid(f"{learner}: Python finds another module `{learner.stem}`, or none: rename the file")
    pod = data["spec"].setdefault("learner", {"template": {}})["template"].setdefault("spec", {})
    containers = pod.setdefault("containers", [])
    container: dict[str, Any] = containers[0] if containers else {"name": "learner", "workingDir": "/tmp"}
    containers[:1] = [container]
    # -P: files of its working folder hide no module.
    command = container.setdefault("command", ["python", "-P", "-u", "-m", learner.stem])
    if not any(learner.stem in str(part) for part in command):
        runs = " ".join(map(str, command))
        raise JobInvalid(f"spec.learner runs `{runs}`, not {learner.name}: remove that `command`, or --learner")
    if arguments:
        container["args"] = [*arguments]
    sources.write_into(data["spec"], f"{job.metadata.name}-source")
    return job.model_copy(update={"spec": parse_job(data, origin="with the learner").spec}), sources


def follow(jobs: Jobs, job: str, show: Callable[[str], None], explain: Callable[[str], None]) -> int:
    """Show a learner's log until the job ends; of a learner that ended before it was seen, too.

    `show` takes a line of the log. `explain` takes the job's state, each time that it changes before the learner runs,
    and the reason why a log cannot be read after the job's end.

    Returns:
        The exit code: 0 if the job is complete, 1 if it failed.

    Raises:
        JobEnded: The job was deleted.
    """
    state, cut, followed = "", "", set[str]()
    while True:
        away_until_s = time.monotonic() + AWAY_S if state else 0.0  # after a cut it may be away for a while
        for seen in answered(partial(_states, jobs, job), away_until_s):
            found, complete = diagnose(seen), seen.status.held(ConditionType.COMPLETE)
            over = seen.status.has_ended(seen.metadata.generation)  # one of an earlier spec is tried again
            pods = [pod for pod in jobs.pods(seen) if pod.role == Role.LEARNER and pod.phase != "Pending"]
            begun = [pod for pod in pods if not (pod.name in followed and (over or pod.finished))]
            now = f"{seen.key} is {found}"
            if over and not begun:  # after the learner's last words
                explain(now)
                return 0 if complete else EXIT_FAILURE
            # Ignore workers that exit before the learner.
            if now != state and not over and (found.is_problem or not followed):
                state = now
                explain(state)
            for pod in begun:
                again = pod.name in followed  # its log's stream has ended, and the pod has not: show what comes now
                followed.add(pod.name)
                lines = jobs.api.logs(seen.metadata.namespace, pod.name, follow=True, tail=0 if again else None)
                heard = again
                try:
                    for line in lines:
                        heard = True
                        show(line)
                except ClusterError as error:
                    if not (over or passes(error)):  # a stream that was cut begins again
                        raise
                    if not (over or heard):
                        followed.discard(pod.name)  # nothing of it was shown yet
                    if cut != str(error):
                        cut = str(error)
                        explain(cut)
                if again:
                    time.sleep(AGAIN_S)
            if begun:
                break  # the states of the meantime are past
        else:
            raise JobEnded(f"{job} was deleted")


def _states(jobs: Jobs, job: str) -> Iterator[JobView]:
    """Return a job's states, the first of which is read by now."""
    states = jobs.watch(job)
    return chain([next(states)], states)

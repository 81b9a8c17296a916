"""The NATS permissions of each role of a job: the least that its program needs.

They are written into the configuration of the job's server (`nats_server`), on one machine and on a cluster.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from rollfleet_api.subjects import Ask, Subjects


class Role(StrEnum):
    """The role of a job's process, and of its pod. Evaluation workers connect to NATS as workers."""

    WORKER = "worker"
    LEARNER = "learner"
    EVALUATION = "evaluation"
    ENV_SERVER = "env-server"  # it does not connect to NATS
    NATS = "nats"  # the job's server

    @property
    def word(self) -> str:
        """The role as a part of a reason: `EnvServer`."""
        return self.title().replace("-", "")

    def process(self, index: int) -> str:
        """Return the role's process of this index in words; a job has one learner, and one server.

        Example:
            >>> Role.WORKER.process(3), Role.EVALUATION.process(0), Role.ENV_SERVER.process(7)
            ('worker 3', 'evaluation worker 0', 'environment server 7')
        """
        return _PROCESSES[self].format(index)


_PROCESSES: Final = {
    Role.WORKER: "worker {}",
    Role.LEARNER: "learner",
    Role.EVALUATION: "evaluation worker {}",
    Role.ENV_SERVER: "environment server {}",
    Role.NATS: "NATS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The subjects that a role may publish to and subscribe to; all others are refused."""

    publish: list[str]
    subscribe: list[str]


def permissions(subjects: Subjects, role: Role) -> Permissions:
    """Return the permissions of a role in all jobs of this name.

    Example:
        >>> "rollfleet.default.cartpole.*.control" in permissions(Subjects.parse("cartpole"), Role.WORKER).subscribe
        True
    """
    subjects = replace(subjects, uid="*")
    asked = [subjects.ask(Ask.JOB), subjects.ask("*")]
    if role is not Role.LEARNER:
        own = [subjects.batches, subjects.workers, subjects.evaluations, subjects.answers, subjects.wants("*")]
        heard = [subjects.spec, subjects.control, subjects.weights_of("*"), subjects.taken("*"), subjects.calls]
        return Permissions(publish=[*own, *asked], subscribe=[*heard, *asked])
    own = [subjects.control, subjects.weights_of("*"), subjects.learner("*"), subjects.taken("*"), subjects.calls]
    # Other ranks and recorders have the learner's credentials: they need control, too.
    heard = [subjects.spec, subjects.control, subjects.learner("*"), subjects.workers, subjects.wants("*")]
    results = [subjects.batches, subjects.evaluations, subjects.answers]
    return Permissions(publish=[*own, *asked], subscribe=[*heard, *results, *asked])

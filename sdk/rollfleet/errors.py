"""Every error that Rollfleet raises on purpose.

```
RollfleetError
├── JobInvalid                a value of the job cannot be used (also a ValueError)
│   ├── EnvironmentInvalid    an environment cannot be made, or has a space that is not supported
│   └── PolicyInvalid         a policy cannot be made, or returned a value that does not fit the environment
├── EnvironmentFailed         an environment raised an error, or its process died; a retry may work
├── JobNotFound               this NATS server, or this cluster, has no such job
├── JobEnded                  the job is over; no more batches will come
│   └── WorkerReplaced        another process took this worker's index
├── ConnectionFailed          NATS, or an environment server, cannot be reached, or NATS refused the credentials
├── NatsServerMissing         this machine has no nats-server program
├── ClusterError              a Kubernetes cluster refused a request, or cannot be reached (with its reason)
├── LearnerReplaced           a newer learner took over this job
├── NoWeights                 the iterator would wait forever: no weights were ever sent
├── WeightMismatch            names, shapes or dtypes of weights differ (with the parameter's name)
├── WorkerFailed              a worker gave up (with its own error)
├── CallFailed                a method that the learner called on a worker raised (with its traceback)
├── RecordingDamaged          a file of a recording cannot be read (with the file)
├── WireError
│   ├── MessageCorrupt        a message is cut, flipped or inconsistent
│   └── MessageTooLarge       a message is over a limit (also raised before sending)
└── Timeout                   an event did not happen in time (also a TimeoutError)
```
"""

from copy import copy
from pathlib import Path

from rollfleet_api.text import reason_of


class RollfleetError(Exception):
    """Base of every error that Rollfleet raises on purpose.

    Example:
        >>> import rollfleet
        >>> try:
        ...     rollfleet.Collector("CartPole-v1", frames_per_batch=8, total_frames=-2)
        ... except rollfleet.RollfleetError as error:
        ...     print(type(error).__name__, error)
        JobInvalid total_frames: must be at least 0, got -2
    """


class JobInvalid(RollfleetError, ValueError):
    """A value of the job cannot be used. The message names the field, the value, and what to write instead."""


class EnvironmentInvalid(JobInvalid):
    """An environment cannot be made, or has a space that is not supported."""


class PolicyInvalid(JobInvalid):
    """A policy cannot be made, or returned a value that does not fit the environment."""


class EnvironmentFailed(RollfleetError):
    """An environment in a separate process raised an error, or that process died. The message names it."""


class JobNotFound(RollfleetError):
    """This NATS server, or this cluster, has no job of that name."""


class JobEnded(RollfleetError):
    """The job is over: it is complete, has failed, or was deleted."""


class WorkerReplaced(JobEnded):
    """Another process took this worker's index: for this process, the job is over."""


class ConnectionFailed(RollfleetError):
    """NATS, or an environment server, cannot be reached, or NATS refused the credentials."""


class NatsServerMissing(RollfleetError):
    """This machine has no nats-server program."""


class ClusterError(RollfleetError):
    """A Kubernetes cluster refused a request, or could not be reached. Admission messages come through word for word.

    Attributes:
        status: The HTTP status; 0: there was no answer.
        reason: The cause in one word: Kubernetes' own, such as `Forbidden`, `Conflict`, `AlreadyExists` or `Invalid`,
            or `NoClient`, `NoKubeconfig`, `NoNamespace`, `NoPod`, `NotInstalled`, `Unreachable`, `Unreadable`.
    """

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class LearnerReplaced(RollfleetError):
    """A newer learner connected to this job and took over its batches."""


class NoWeights(RollfleetError):
    """No batch would ever come: workers wait for weights, and none were sent."""


class WeightMismatch(RollfleetError, ValueError):
    """Weights do not fit the module that they are for. The message names the first parameter that differs."""


class WorkerFailed(RollfleetError):
    """A worker gave up. The message has the worker's own error.

    Attributes:
        worker: Index of the worker in its job.
    """

    def __init__(self, worker: int, message: str) -> None:
        super().__init__(f"worker {worker} failed: {message}")
        self.worker = worker


class CallFailed(RollfleetError):
    """A method that the learner called on a worker raised an error. The worker goes on.

    Attributes:
        worker: The worker's index.
        method: The method.
        error: The worker's traceback.
    """

    def __init__(self, worker: int, method: str, error: str) -> None:
        super().__init__(f"worker {worker}: {method}: {reason_of(error)}")
        self.worker, self.method, self.error = worker, method, error


class RecordingDamaged(RollfleetError):
    """A file of a recording cannot be read.

    Attributes:
        file: The file.
    """

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file} cannot be read: {why}; move it out of the recording to read the rest")
        self.file = file


class WireError(RollfleetError):
    """The bytes of a message are not valid."""


class MessageCorrupt(WireError):
    """A message is cut, flipped, of another format, or its lengths are inconsistent."""


class MessageTooLarge(WireError):
    """A message is over a limit.

    Attributes:
        size_bytes: The size of the message, as measured or as claimed by it.
        limit_bytes: The largest size allowed.
    """

    def __init__(self, size_bytes: int, limit_bytes: int, what: str = "message") -> None:
        super().__init__(f"{what} of {size_bytes} bytes is over the limit of {limit_bytes} bytes")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class Timeout(RollfleetError, TimeoutError):
    """An event did not happen in time. The message names it."""


def copied(error: BaseException) -> BaseException:
    """Return a copy of a kept error, to raise it: raised itself, it would keep what its callers' frames refer to."""
    try:
        again = copy(error)  # also what is not in `args`: an OSError's file, a SystemExit's code
    except Exception:  # its constructor takes other arguments
        again = type(error).__new__(type(error), *error.args)
        again.__dict__.update(error.__dict__)
    again.args, again.__cause__ = error.args, error.__cause__
    return again.with_traceback(error.__traceback__)

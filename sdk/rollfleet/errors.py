"""Every error that Rollfleet raises on purpose.

```
RollfleetError
├── JobInvalid                the job says something that cannot be done (also a ValueError)
│   ├── EnvironmentInvalid    an environment could not be made, or has a space that is not supported
│   └── PolicyInvalid         a policy could not be made, or returned what cannot be used
├── EnvironmentFailed         an environment raised, or its process died: it may work the next time
├── JobNotFound               no such job on this NATS server
├── JobEnded                  the job is over: nothing more will come
├── ConnectionFailed          NATS could not be reached, or refused us
├── JetStreamRefused          a stream or consumer could not be made (has the server's error code)
├── NatsServerMissing         there is no nats-server program to embed
├── KubectlMissing            there is no kubectl program to reach a cluster with
├── KubectlFailed             kubectl, or the cluster behind it, refused (has kubectl's exit code)
├── LearnerReplaced           a newer learner took this job over
├── NoWeights                 the iterator would wait for ever: no weights were ever sent
├── WeightMismatch            names, shapes or dtypes of weights differ (names the parameter)
├── WorkerFailed              a worker gave up, with its own error
├── RecordingDamaged          a recording has bytes that are not what was written (has the file and the offset)
├── WireError
│   ├── MessageCorrupt        bytes that are cut, flipped, or lie about themselves
│   └── MessageTooLarge       a message over a bound (also raised before sending)
└── Timeout                   something did not happen in time (also a TimeoutError)
```
"""

from pathlib import Path


class RollfleetError(Exception):
    """Base of every error here: `except RollfleetError` catches them all and nothing else."""


class JobInvalid(RollfleetError, ValueError):
    """The job says something that cannot be done. The message tells where, what, and what to write instead."""


class EnvironmentInvalid(JobInvalid):
    """An environment could not be made, or has a space that is not supported."""


class PolicyInvalid(JobInvalid):
    """A policy could not be made, or returned something that does not fit the environment."""


class EnvironmentFailed(RollfleetError):
    """An environment in a process of its own raised, or that process died. The message names it."""


class JobNotFound(RollfleetError):
    """No job of that name is on this NATS server."""


class JobEnded(RollfleetError):
    """The job is over: its learner completed it, or it was deleted."""


class ConnectionFailed(RollfleetError):
    """NATS could not be reached, or refused the credentials."""


class JetStreamRefused(RollfleetError):
    """JetStream refused a request. The message is the server's.

    Attributes:
        subject: What was asked.
        error_code: JetStream's own number for the error.
        description: Its words.
    """

    def __init__(self, subject: str, error_code: int, description: str) -> None:
        super().__init__(f"NATS refused {subject}: {description} (error {error_code})")
        self.subject = subject
        self.error_code = error_code
        self.description = description


class NatsServerMissing(RollfleetError):
    """There is no nats-server program on this machine."""


class KubectlMissing(RollfleetError):
    """There is no kubectl program on this machine."""


class KubectlFailed(RollfleetError):
    """kubectl, or the cluster behind it, refused. The message is kubectl's, and what to do where we know it.

    Attributes:
        code: kubectl's exit code.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class LearnerReplaced(RollfleetError):
    """A newer learner connected to this job and took its batches over."""


class NoWeights(RollfleetError):
    """Nothing would ever come: workers wait for weights that nobody has sent."""


class WeightMismatch(RollfleetError, ValueError):
    """Weights do not fit the module they are meant for. The message names the first parameter that differs."""


class WorkerFailed(RollfleetError):
    """A worker gave up. The message holds the worker's own error.

    Attributes:
        worker: Index of the worker in its job.
    """

    def __init__(self, worker: int, message: str) -> None:
        super().__init__(f"worker {worker} failed: {message}")
        self.worker = worker


class RecordingDamaged(RollfleetError):
    """A recording has bytes that are not what was written.

    Attributes:
        file: The segment.
        offset: In that file, in bytes.
    """

    def __init__(self, file: Path, offset: int, why: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {offset}: {why}; `Recording(..., skip_damaged=True)` passes it over"
        )
        self.file = file
        self.offset = offset


class WireError(RollfleetError):
    """Something about the bytes of a message."""


class MessageCorrupt(WireError):
    """Bytes that are cut, flipped, of another format, or that lie about their length."""


class MessageTooLarge(WireError):
    """A message over a bound.

    Attributes:
        size_bytes: What the message has, or claims to have.
        limit_bytes: What is allowed.
    """

    def __init__(self, size_bytes: int, limit_bytes: int, what: str = "message") -> None:
        super().__init__(f"{what} of {size_bytes} bytes is over the limit of {limit_bytes} bytes")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class Timeout(RollfleetError, TimeoutError):
    """Something did not happen in time. The message tells what was waited for."""

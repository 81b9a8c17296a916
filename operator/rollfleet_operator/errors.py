"""All errors that the operator raises on purpose.

```
OperatorError
├── NatsUnavailable     NATS could not be reached, or refused a request; the operator tries again
├── ApiError            the API server refused a request (has its status code, reason and message)
├── EarlierJob          an object of an earlier job of the same name is not deleted yet
├── NameTaken           an object that a job needs exists already and belongs to someone else
├── TemplateInvalid     a user's pod template does not have the form of one
└── SourceMissing       the ConfigMap in a job's `source` does not exist
```
"""


class OperatorError(Exception):
    """Base of all errors here. Its message goes into a condition: it says what is wrong and how to fix it."""


class NatsUnavailable(OperatorError):
    """NATS could not be reached, or refused a request."""


class ApiError(OperatorError):
    """The API server refused a request.

    Attributes:
        status: HTTP status code; 0: no answer.
        reason: The API's reason, such as `NotFound`, `Conflict`, `Forbidden`, `Invalid`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class EarlierJob(OperatorError):
    """An object of an earlier job of the same name is not deleted yet."""


class NameTaken(OperatorError):
    """An object of this name exists already and belongs to someone else."""


class TemplateInvalid(OperatorError):
    """A user's pod template does not have the form of one."""


class SourceMissing(OperatorError):
    """The ConfigMap in a job's `source` does not exist."""

"""Every error that the operator raises on purpose.

```
OperatorError
├── NatsUnavailable     NATS could not be reached, or refused us; it is tried again
├── ApiError            the API server refused a request (has its status code, reason and message)
├── NameTaken           an object that a job needs is there already, and belongs to somebody else
├── TemplateInvalid     a pod template that a user wrote has not the shape of one
└── SourceMissing       the ConfigMap that `source` names is not there
```
"""


class OperatorError(Exception):
    """Base of every error here. The message is fit for a condition: it tells what is wrong and what to do."""


class NatsUnavailable(OperatorError):
    """NATS could not be reached, or refused what the operator asked for."""


class ApiError(OperatorError):
    """The API server refused a request.

    Attributes:
        status: The HTTP status code; 0: there was no answer.
        reason: The API's own word for it, such as `NotFound`, `Conflict`, `Forbidden`, `Invalid`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NameTaken(OperatorError):
    """An object that a job needs has a name that is in use."""


class TemplateInvalid(OperatorError):
    """A pod template that a user wrote has not the shape of one."""


class SourceMissing(OperatorError):
    """The ConfigMap that `source` names is not there."""

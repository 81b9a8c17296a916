"""What importing costs, each in a fresh interpreter."""

from contextlib import nullcontext
from typing import Any

from work import Work


def torch_alone(_: Work) -> Any:
    """What nobody can do without."""
    return nullcontext("torch")


def rollfleet_api(_: Work) -> Any:
    """Who only validates jobs."""
    return nullcontext("rollfleet_api")


def rollfleet(_: Work) -> Any:
    """The learner's import."""
    return nullcontext("rollfleet")


def rollfleet_worker(_: Work) -> Any:
    """All that a worker imports before it knows its job."""
    return nullcontext("rollfleet.cli.worker_program")


def torchrl(_: Work) -> Any:
    """TorchRL's collectors."""
    return nullcontext("torchrl.collectors")

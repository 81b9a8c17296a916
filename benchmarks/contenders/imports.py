"""The cost of imports, each in a fresh interpreter."""

from contextlib import nullcontext
from typing import Any

from work import Work


def torch_alone(_: Work) -> Any:
    """torch, which every contender imports."""
    return nullcontext("torch")


def rollfleet_api(_: Work) -> Any:
    """The import of a program that only validates jobs."""
    return nullcontext("rollfleet_api")


def rollfleet(_: Work) -> Any:
    """The learner's import."""
    return nullcontext("rollfleet")


def rollfleet_worker(_: Work) -> Any:
    """All imports of a worker before it reads its job."""
    return nullcontext("rollfleet.cli.worker_program")


def torchrl(_: Work) -> Any:
    """TorchRL's collectors."""
    return nullcontext("torchrl.collectors")

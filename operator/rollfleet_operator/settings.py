"""What an operator is told when it starts: one value, read from the environment by the program alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

WORKER_IMAGE: Final = "ROLLFLEET_WORKER_IMAGE"
NAMESPACES: Final = "ROLLFLEET_NAMESPACES"
NETWORK_POLICIES: Final = "ROLLFLEET_NETWORK_POLICIES"
PORT: Final = "ROLLFLEET_PORT"


class SettingsInvalid(ValueError):
    """An environment variable says something that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one operator does alike for all jobs.

    Attributes:
        worker_image: For workers whose job names no image.
        namespaces: Those that are watched; empty: all of them.
        network_policies: Whether pods are fenced in; a cluster may have policies of its own.
        port: Of health and metrics; 0: a free one.
        workers: Reconciliations at the same time, each of another job.
        resync_s: Seconds between two lists of everything, which mend what no watch told of.
        doubt_s: Seconds after which what is neither watched nor listed (Secrets, NATS) is looked at anew.
        refresh_s: Seconds between two looks at the heartbeats of a job that runs.
        status_interval_s: The least between two writes of a job's status where no condition changes.
    """

    worker_image: str = "rollfleet-worker:latest"
    namespaces: tuple[str, ...] = ()
    network_policies: bool = True
    port: int = 8080
    workers: int = 8
    resync_s: float = 60.0
    doubt_s: float = 600.0
    refresh_s: float = 5.0
    status_interval_s: float = 5.0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """What the environment says, with defaults for the rest.

        Raises:
            SettingsInvalid: A variable cannot be used. The text names it.
        """
        said = cls()
        port = environ.get(PORT, str(said.port))
        if not port.isdecimal() or int(port) > 65535:
            raise SettingsInvalid(f"{PORT}={port!r}: expected a number from 0 to 65535")
        policies = environ.get(NETWORK_POLICIES, "true")
        if policies not in ("true", "false"):
            raise SettingsInvalid(f"{NETWORK_POLICIES}={policies!r}: expected `true` or `false`")
        return cls(
            worker_image=environ.get(WORKER_IMAGE) or said.worker_image,
            namespaces=tuple(name for name in environ.get(NAMESPACES, "").replace(",", " ").split() if name),
            network_policies=policies == "true",
            port=int(port),
        )

"""The operator's settings: one value, which the program reads from environment variables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from rollfleet_api.quantity import parse_bytes
from rollfleet_operator.manifest import Manifest

WORKER_IMAGE: Final = "ROLLFLEET_WORKER_IMAGE"
NAMESPACES: Final = "ROLLFLEET_NAMESPACES"
NETWORK_POLICIES: Final = "ROLLFLEET_NETWORK_POLICIES"
PORT: Final = "ROLLFLEET_PORT"
UI_PORT: Final = "ROLLFLEET_UI_PORT"
LEASE: Final = "ROLLFLEET_LEASE"
POD: Final = "ROLLFLEET_POD"
NATS_TO: Final = "ROLLFLEET_NATS_TO"
DNS_TO: Final = "ROLLFLEET_DNS_TO"
MAX_BYTES_PER_JOB: Final = "ROLLFLEET_MAX_BYTES_PER_JOB"


class SettingsInvalid(ValueError):
    """An environment variable, or a file that it names, has an invalid value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an operator, for all jobs.

    Attributes:
        worker_image: The image of jobs without `image`.
        namespaces: The watched namespaces; empty: all.
        network_policies: Whether to create NetworkPolicies for pods.
        port: The port of health and metrics; 0: a free one.
        ui_port: The port of the page; None: no page.
        lease: Namespace and name of the Lease that one operator of several holds; None: this is the only operator.
        pod: The name of the operator's pod, which holds the Lease.
        nats_to: Where NATS is, as entries of a NetworkPolicy's `to`; empty: at any address.
        dns_to: Where name servers are, as `nats_to`.
        max_bytes_per_job: The most `delivery.maxBytes` of a job, in bytes; None: no limit.
        workers: Number of concurrent reconciliations, each of another job.
        resync_s: Seconds between lists of all objects, which repair what watches missed.
        verify_s: Seconds between checks of state that is neither watched nor listed (Secrets, NATS).
        refresh_s: Seconds between reconciliations of a running job, to read its heartbeats.
        status_interval_s: The least seconds between writes of a status without changed conditions.

    Example:
        >>> Settings.read({"ROLLFLEET_NAMESPACES": "team-a,team-b"}).namespaces
        ('team-a', 'team-b')
    """

    worker_image: str = "rollfleet-worker:latest"
    namespaces: tuple[str, ...] = ()
    network_policies: bool = True
    port: int = 8080
    ui_port: int | None = None
    lease: tuple[str, str] | None = None
    pod: str = ""
    nats_to: tuple[Manifest, ...] = ()
    dns_to: tuple[Manifest, ...] = ()
    max_bytes_per_job: int | None = None
    workers: int = 8
    resync_s: float = 60.0
    verify_s: float = 600.0
    refresh_s: float = 5.0
    status_interval_s: float = 5.0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from environment variables, with defaults.

        Raises:
            SettingsInvalid: A variable has an invalid value. The text names it.
        """
        default = cls()
        policies = environ.get(NETWORK_POLICIES, "true")
        if policies not in ("true", "false"):
            raise SettingsInvalid(f"{NETWORK_POLICIES}={policies!r}: expected `true` or `false`")
        lease, pod = environ.get(LEASE, ""), environ.get(POD, "")
        namespace, _, name = lease.partition("/")
        if lease and not (namespace and name):
            raise SettingsInvalid(f"{LEASE}={lease!r}: expected `namespace/name`")
        if lease and not pod:
            raise SettingsInvalid(f"{POD} is not set: {LEASE} needs the name of the operator's pod")
        return cls(
            worker_image=environ.get(WORKER_IMAGE) or default.worker_image,
            namespaces=tuple(name for name in environ.get(NAMESPACES, "").replace(",", " ").split() if name),
            network_policies=policies == "true",
            port=_port(environ, PORT) if PORT in environ else default.port,
            ui_port=_port(environ, UI_PORT) if UI_PORT in environ else None,
            lease=(namespace, name) if lease else None,
            pod=pod,
            nats_to=_peers(environ, NATS_TO),
            dns_to=_peers(environ, DNS_TO),
            max_bytes_per_job=_max_bytes(environ),
        )


def _port(environ: Mapping[str, str], name: str) -> int:
    port = environ[name]
    if not port.isdecimal() or int(port) > 65535:
        raise SettingsInvalid(f"{name}={port!r}: expected a number from 0 to 65535")
    return int(port)


def _peers(environ: Mapping[str, str], name: str) -> tuple[Manifest, ...]:
    text = environ.get(name) or "[]"
    try:
        return tuple(dict(each) for each in json.loads(text))
    except (TypeError, ValueError) as error:
        raise SettingsInvalid(f"{name}={text!r}: expected a list of a NetworkPolicy's peers: {error}") from error


def _max_bytes(environ: Mapping[str, str]) -> int | None:
    text = environ.get(MAX_BYTES_PER_JOB)
    try:
        return parse_bytes(text) if text else None
    except ValueError as error:
        raise SettingsInvalid(f"{MAX_BYTES_PER_JOB}={text!r}: {error}") from error

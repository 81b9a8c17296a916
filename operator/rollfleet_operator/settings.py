"""The operator's settings: one value, which the program reads from environment variables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from rollfleet_operator.manifest import Manifest


def _lease(text: str) -> str:
    if text.count("/") != 1 or not all(text.split("/")):
        raise ValueError("expected `namespace/name`")
    return text


def _peers(text: str) -> object:
    try:
        return tuple(dict(each) for each in json.loads(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected a list of a NetworkPolicy's peers: {error}") from error


T = TypeVar("T")
_Port = Annotated[int, Field(ge=0, le=65535)]
_Seconds = Annotated[float, Field(gt=0)]
_Lease = Annotated[str, AfterValidator(_lease)]
_Names = Annotated[tuple[str, ...], BeforeValidator(lambda text: text.replace(",", " ").split())]
_Peers = Annotated[tuple[Manifest, ...], BeforeValidator(_peers)]


class SettingsInvalid(ValueError):
    """An environment variable, or a file that it names, has an invalid value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an operator, for all jobs.

    Attributes:
        worker_image: The image of jobs without `image`.
        fixed_user: Whether jobs' pods run as Rollfleet's user and group; False: as the cluster chooses (OpenShift).
        namespaces: The watched namespaces; empty: all.
        network_policies: Whether to create NetworkPolicies for pods.
        port: The port of health and metrics; 0: a free one.
        ui_port: The port of the page; None: no page.
        lease: `namespace/name` of the Lease that one operator of several holds; None: this is the only operator.
        pod: The name of the operator's pod, which holds the Lease.
        nats_to: Where NATS is, as entries of a NetworkPolicy's `to`; empty: at any address.
        dns_to: Where name servers are, as `nats_to`.
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
    fixed_user: bool = True
    namespaces: _Names = ()
    network_policies: bool = True
    port: _Port = 8080
    ui_port: _Port | None = None
    lease: _Lease | None = None
    pod: str = ""
    nats_to: _Peers = ()
    dns_to: _Peers = ()
    workers: Annotated[int, Field(ge=1)] = 8
    resync_s: _Seconds = 60.0
    verify_s: _Seconds = 600.0
    refresh_s: _Seconds = 5.0
    status_interval_s: _Seconds = 5.0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from environment variables: `worker_image` from `ROLLFLEET_WORKER_IMAGE`, and so on.

        Raises:
            SettingsInvalid: A variable has an invalid value. The text names it.
        """
        names = {field.name: f"ROLLFLEET_{field.name.upper()}" for field in fields(cls)}
        settings = validated(cls, names, environ)
        if settings.lease and not settings.pod:
            raise SettingsInvalid(f"{names['pod']} is not set: {names['lease']} needs the name of the operator's pod")
        return settings


def validated(kind: type[T], names: Mapping[str, str], environ: Mapping[str, str], **others: object) -> T:
    """Return settings from environment variables, named by field, and from `others`. An empty variable is not set.

    Raises:
        SettingsInvalid: A variable has an invalid value. The text names it.
    """
    given = {field: environ[name] for field, name in names.items() if environ.get(name)}
    try:
        return TypeAdapter(kind).validate_python(given | others)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0])
        raise SettingsInvalid(
            f"{names[field]}={given[field]!r}: {first['msg'].removeprefix('Value error, ')}"
        ) from error

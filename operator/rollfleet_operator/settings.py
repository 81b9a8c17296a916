"""The operator's settings: one value, which the program reads from environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, Json, TypeAdapter, ValidationError

from rollfleet_api.kubernetes_names import OPERATORS
from rollfleet_operator.manifest import Manifest

_Port = Annotated[int, Field(ge=0, le=65535)]
_Seconds = Annotated[float, Field(gt=0)]
_Lease = Annotated[str, Field(pattern="^[^/]+/[^/]+$")]
_Names = Annotated[tuple[str, ...], BeforeValidator(lambda text: text.replace(",", " ").split())]
_Mapping = Json[Manifest]
_Peers = Json[tuple[Manifest, ...]]


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
        key_secret: `namespace/name` of the Secret with the installation's key, in the operator's own namespace.
        nats_image: The image of the jobs' NATS servers.
        nats_pull_policy: Its pull policy.
        nats_resources: The servers' resources: `requests` and `limits`.
        nats_config: Further options of the servers' configuration.
        nats_service_annotations: Annotations of the servers' Services of type `LoadBalancer`.
        nats_tls: Whether the servers encrypt.
        nats_from: Their clients besides the job's pods, as entries of a NetworkPolicy's `from`.
        nats_url: URL of the organisation's NATS, for all jobs; empty: each job has a server of its own.
        nats_external: The folder with the user of that NATS; see `NatsAccess.on`.
        nats_to: Where that NATS is, as entries of a NetworkPolicy's `to`; empty: at any address.
        dns: Where name servers are, as rules of a NetworkPolicy's `egress`.
        image_pull_secrets: Names of Secrets in jobs' namespaces, by which the images of their pods are pulled.
        workers: Number of concurrent reconciliations, each of another job.
        resync_s: Seconds between looks at all jobs, whether they have changed or not.
        verify_s: Seconds between writes of a job's Secrets, which the operator may not read.
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
    key_secret: _Lease = "rollfleet/rollfleet-key"
    nats_image: str = "nats:latest"
    nats_pull_policy: str = "IfNotPresent"
    nats_resources: _Mapping = field(default_factory=dict)
    nats_config: _Mapping = field(default_factory=dict)
    nats_service_annotations: _Mapping = field(default_factory=dict)
    nats_tls: bool = True
    nats_from: _Peers = ()
    nats_url: str = ""
    nats_external: Path | None = None
    nats_to: _Peers = ()
    dns: _Peers = ({"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},)
    image_pull_secrets: _Names = ()
    workers: Annotated[int, Field(ge=1)] = 8
    resync_s: _Seconds = 60.0
    verify_s: _Seconds = 600.0
    refresh_s: _Seconds = 5.0
    status_interval_s: _Seconds = 5.0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from environment variables: `worker_image` from `ROLLFLEET_WORKER_IMAGE`, and so on.

        An empty variable is not set, nor one with `null`, by which Helm removes a value.

        Raises:
            SettingsInvalid: A variable has an invalid value. The text names it.
        """
        names = {field.name: f"ROLLFLEET_{field.name.upper()}" for field in fields(cls)}
        given = {field: environ[name] for field, name in names.items() if environ.get(name) not in (None, "", "null")}
        try:
            settings = TypeAdapter(cls).validate_python(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = str(first["loc"][0])
            raise SettingsInvalid(f"{names[field]}={given[field]!r}: {first['msg']}") from error
        if settings.lease and not settings.pod:
            raise SettingsInvalid(f"{names['pod']} is not set: {names['lease']} needs the name of the operator's pod")
        if settings.nats_url and not settings.nats_external:
            raise SettingsInvalid(f"{names['nats_external']} is not set: {names['nats_url']} needs a user")
        return settings

    @property
    def operator_pods(self) -> Manifest:
        """The operator's pods, as an entry of a NetworkPolicy's `from`."""
        namespace = self.key_secret.partition("/")[0]
        labels = dict(label.split("=") for label in OPERATORS.split(","))
        return {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "podSelector": {"matchLabels": labels},
        }

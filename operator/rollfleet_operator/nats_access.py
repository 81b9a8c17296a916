"""Where a job's NATS is, and how each of its users logs in: on a server of the job's own, or on an organisation's."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import nats_server
from rollfleet_api.nats_server import PORT
from rollfleet_operator.installation_key import InstallationKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The way of one user to a job's NATS.

    Attributes:
        url: URL such as `tls://host:port`; commas separate several.
        credentials: A NATS credentials file (JWT and seed), or `user:password`.
        ca: The certificates to trust (PEM); None: those of the machine.
    """

    url: str
    credentials: bytes = field(repr=False)
    ca: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """The way to the NATS of each job.

    Attributes:
        key: The installation's key, from which the passwords and certificates of jobs' own servers are derived.
        tls: Whether these servers encrypt.
        external: The organisation's NATS, with one user for all jobs; None: each job has a server of its own.
    """

    key: InstallationKey
    tls: bool = True
    external: Login | None = None

    @classmethod
    def on(cls, url: str, folder: Path, key: InstallationKey) -> Self:
        """Return the access to an organisation's NATS, by files as the chart mounts them.

        They are `user.creds`, or `username` and `password`, and `ca.crt`, unless its certificate is public.

        Raises:
            OSError: A file cannot be read.
        """
        creds, ca = folder / "user.creds", folder / "ca.crt"
        if creds.exists():
            credentials = creds.read_bytes()
        else:
            credentials = b":".join((folder / name).read_bytes().strip() for name in ("username", "password"))
        return cls(
            key=key, external=Login(url=url, credentials=credentials, ca=ca.read_bytes() if ca.exists() else None)
        )

    def login(self, job: CollectorJob, user: str, *, host: str = "") -> Login:
        """Return how a user reaches a job's NATS; `host`: at another host than the server's name in the cluster."""
        if self.external:
            return self.external
        return Login(
            url=f"{'tls' if self.tls else 'nats'}://{f'[{host}]' if ':' in host else host or host_of(job)}:{PORT}",
            credentials=f"{user}:{self.key.password(job, user)}".encode(),
            ca=self.key.authority(job) if self.tls else None,
        )


def host_of(job: CollectorJob) -> str:
    """Return the name of the job's own server in the cluster."""
    return f"{nats_server(job.metadata.name)}.{job.metadata.namespace}.svc"

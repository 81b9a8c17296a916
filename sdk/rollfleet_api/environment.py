"""How a process is told where its job is: environment variables, or files mounted into its pod; and the inverse.

Variables win over files, arguments (where a function takes some) win over both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

FILES = Path("/var/run/rollfleet")  # what the operator mounts: one file a field, named as below

URL = "ROLLFLEET_NATS_URL"
CREDENTIALS = "ROLLFLEET_NATS_CREDENTIALS"
CA = "ROLLFLEET_NATS_CA"
JOB = "ROLLFLEET_JOB"
WORKER = "ROLLFLEET_WORKER"
THREADS = "ROLLFLEET_THREADS"
JOB_COMPLETION_INDEX = "JOB_COMPLETION_INDEX"  # Kubernetes gives it to each pod of an Indexed Job


class EnvironmentIncomplete(ValueError):
    """Something that a process must be told was said nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a job is, and with what one may reach it.

    Attributes:
        url: NATS, as `nats://host:port`, `tls://...`; may hold `user:password@`. Several, separated by commas.
        job: `namespace/name`.
        credentials: A NATS credentials file (JWT and seed); None: those in the URL, or none.
        ca: A file of certificates to trust; None: the system's.
    """

    url: str
    job: str
    credentials: Path | None = None
    ca: Path | None = None

    @classmethod
    def read(
        cls, environ: Mapping[str, str], *, files: Path = FILES, url: str | None = None, job: str | None = None
    ) -> Self:
        """What arguments, variables and files say, in this order.

        Raises:
            EnvironmentIncomplete: No URL or no job was named anywhere. The text tells where it was looked for.
        """
        url = url or environ.get(URL) or _text(files / "url")
        if not url:
            raise EnvironmentIncomplete(f"no NATS server named: pass its URL, set {URL}, or mount {files / 'url'}")
        job = job or environ.get(JOB) or _text(files / "job")
        if not job:
            raise EnvironmentIncomplete(f"no job named: pass its name, set {JOB}, or mount {files / 'job'}")
        return cls(
            url=url,
            job=job,
            credentials=_path(environ.get(CREDENTIALS), files / "user.creds"),
            ca=_path(environ.get(CA), files / "ca.crt"),
        )

    def variables(self) -> dict[str, str]:
        """The environment variables that `read` understands."""
        said = {
            URL: self.url,
            JOB: self.job,
            CREDENTIALS: str(self.credentials) if self.credentials else "",
            CA: str(self.ca) if self.ca else "",
        }
        return {name: value for name, value in said.items() if value}

    def with_credentials(self, credentials: str | Path | None) -> Self:
        """The same place, reached with another credentials file; None changes nothing."""
        return replace(self, credentials=Path(credentials)) if credentials else self


def worker_index(environ: Mapping[str, str]) -> int:
    """Which worker of its job this process is.

    Raises:
        EnvironmentIncomplete: It was told by no variable, or is no whole number from 0.
    """
    said = environ.get(WORKER) or environ.get(JOB_COMPLETION_INDEX)
    if said is None:
        raise EnvironmentIncomplete(f"no worker index: pass --index, or set {WORKER} or {JOB_COMPLETION_INDEX}")
    if not said.isdecimal():
        raise EnvironmentIncomplete(f"worker index {said!r}: expected a whole number from 0")
    return int(said)


def _text(file: Path) -> str | None:
    return file.read_text().strip() if file.is_file() else None


def _path(said: str | None, file: Path) -> Path | None:
    if said:
        return Path(said)
    return file if file.is_file() else None

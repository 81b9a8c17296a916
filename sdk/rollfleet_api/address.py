"""The address of a job, as a process reads it: from environment variables, or from files mounted into its pod.

Variables win over files. Arguments of a function win over both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

FILES = Path("/var/run/rollfleet")
"""The folder that the operator mounts into pods, with the five files below."""

URL_FILE, JOB_FILE, SPEC_FILE, CREDENTIALS_FILE, CA_FILE = "url", "job", "job.json", "user.creds", "ca.crt"

PUBLIC_URL_FILE = "public-url"
"""A file of the learner's Secret, for machines outside of the cluster, if the server has a load balancer."""

URL = "ROLLFLEET_NATS_URL"
CREDENTIALS = "ROLLFLEET_NATS_CREDENTIALS"
CA = "ROLLFLEET_NATS_CA"
JOB = "ROLLFLEET_JOB"
WORKER = "ROLLFLEET_WORKER"
THREADS = "ROLLFLEET_THREADS"
SHOWS_FAILURES = "ROLLFLEET_SHOWS_FAILURES"  # set for the learner of `rollfleet run`, which shows workers' errors
JOB_COMPLETION_INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes in each pod of an Indexed Job


class EnvironmentIncomplete(ValueError):
    """The environment lacks a setting, or has an invalid one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a job, with the credentials to reach it.

    Attributes:
        url: URL of NATS: `nats://host:port`, `tls://...`, perhaps with `user:password@`; commas separate several.
        job: `namespace/name`.
        credentials: NATS credentials file (JWT and seed), or one with `user:password`; None: the URL contains them, or
            none are needed.
        ca: File of trusted certificates; None: the system's.
        spec: File of the job, as its owner publishes it; None: its owner answers over NATS.
        server_name: The name in the server's certificate, where the URL is a tunnel's; None: the URL's host. Known only
            to this process.

    Example:
        >>> Address.read({"ROLLFLEET_NATS_URL": "nats://localhost", "ROLLFLEET_JOB": "default/cartpole"}).job
        'default/cartpole'
    """

    url: str
    job: str
    credentials: Path | None = None
    ca: Path | None = None
    spec: Path | None = None
    server_name: str | None = None

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str],
        *,
        files: Path = FILES,
        url: str | None = None,
        job: str | None = None,
        credentials: str | Path | None = None,
    ) -> Self:
        """Read an address from arguments, variables and files, in this order.

        A job without a namespace gets that of the next source that has one: `job="acro"` is `team-a/acro` in a pod
        whose file says `team-a/cartpole`.

        Raises:
            EnvironmentIncomplete: URL or job is missing. The text names the argument, the variable and the file.
        """
        url = url or environ.get(URL) or _text(files / URL_FILE)
        if not url:
            raise EnvironmentIncomplete(f"no NATS server given: pass its URL, set {URL}, or mount {files / URL_FILE}")
        named = [name for name in (job, environ.get(JOB), _text(files / JOB_FILE)) if name]
        if not named:
            raise EnvironmentIncomplete(f"no job given: pass its name, set {JOB}, or mount {files / JOB_FILE}")
        namespace = next((each for each in named if "/" in each), "").rpartition("/")[0]
        return cls(
            url=url,
            job=named[0] if "/" in named[0] or not namespace else f"{namespace}/{named[0]}",
            credentials=_path(credentials or environ.get(CREDENTIALS), files / CREDENTIALS_FILE),
            ca=_path(environ.get(CA), files / CA_FILE),
            spec=_path(None, files / SPEC_FILE),
        )

    def variables(self) -> dict[str, str]:
        """Return the environment variables from which `read` gets this address."""
        variables = {
            URL: self.url,
            JOB: self.job,
            CREDENTIALS: str(self.credentials) if self.credentials else "",
            CA: str(self.ca) if self.ca else "",
        }
        return {name: value for name, value in variables.items() if value}


def worker_index(environ: Mapping[str, str]) -> int:
    """Return the index of this process among the workers of its job.

    Raises:
        EnvironmentIncomplete: No variable has it, or it is not a whole number from 0.
    """
    index = environ.get(WORKER) or environ.get(JOB_COMPLETION_INDEX)
    if index is None:
        raise EnvironmentIncomplete(f"no worker index given: pass --index, or set {WORKER} or {JOB_COMPLETION_INDEX}")
    if not index.isdecimal():
        raise EnvironmentIncomplete(f"worker index {index!r}: expected a whole number from 0")
    return int(index)


def _text(file: Path) -> str | None:
    return file.read_text().strip() if file.is_file() else None


def _path(variable: str | Path | None, file: Path) -> Path | None:
    if variable:
        return Path(variable)
    return file if file.is_file() else None

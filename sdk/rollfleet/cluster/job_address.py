"""The way from a machine outside of the cluster to a job's NATS: the learner's Secret, and a tunnel if it needs one."""

import base64
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.patience import answered
from rollfleet.cluster.tunnel import Tunnel
from rollfleet.errors import ClusterError, ConnectionFailed, JobNotFound
from rollfleet_api.address import CA_FILE, CREDENTIALS_FILE, PUBLIC_URL_FILE, SPEC_FILE, URL_FILE, Address
from rollfleet_api.job import KIND
from rollfleet_api.kubernetes_names import JOB_LABEL, ROLE_LABEL, credentials_secret, nats_server
from rollfleet_api.nats_server import PORT
from rollfleet_api.permissions import Role

log = logging.getLogger(__name__)

RENEW_S: Final = 30.0
_FILES: Final = (CREDENTIALS_FILE, CA_FILE, SPEC_FILE)
_DIRECT_S: Final = 2.0
_LOOK_S: Final = 0.5


class JobAddress:
    """The address of a job for a learner in this process, until it is closed.

    Credentials are files in a folder that only this user can read. A thread renews them from the Secret.

    Args:
        api: A client of the cluster, with the rights of the user.
        job: The job's name.
        timeout_s: How long to wait for the Secret, which the operator creates, and then for the server's pod.
        look: Called at each look for these. It may raise.
        renew_s: Seconds between looks at the Secret.

    Attributes:
        address: The address. Its URL is the Secret's for outside of the cluster if it has one that answers from here,
            else the one for inside if that answers, else a tunnel's.

    Raises:
        JobNotFound: The cluster has no such job.
        ClusterError: A right is missing, or the operator has not created the Secret in time.
        ConnectionFailed: NATS does not answer from here, and is not the job's own.
    """

    def __init__(
        self,
        api: ClusterApi,
        namespace: str,
        job: str,
        *,
        timeout_s: float,
        renew_s: float = RENEW_S,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self._api, self._namespace, self._job, self._look = api, namespace, job, look
        self._tunnel: Tunnel | None = None
        self._deleted: Callable[[], object] = lambda: None
        self._closed = threading.Event()
        secret = wait_for_secret(api, namespace, job, timeout_s, look)
        self._folder = Path(tempfile.mkdtemp(prefix="rollfleet-"))
        try:
            self._write(secret)
            url, public_url = (file_of(secret, name).decode().strip() for name in (URL_FILE, PUBLIC_URL_FILE))
            self.address = self._address(url, public_url, timeout_s)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._renew, args=(renew_s,), name="rollfleet-credentials", daemon=True).start()

    def watch(self, deleted: Callable[[], object]) -> None:
        """Call `deleted` once the cluster no longer has the job."""
        self._deleted = deleted

    def close(self) -> None:
        """Close the tunnel, and delete the credentials. Closing twice is harmless."""
        self._closed.set()
        if self._tunnel:
            self._tunnel.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _address(self, url: str, public_url: str, timeout_s: float) -> Address:
        credentials, ca, spec = (path if (path := self._folder / name).exists() else None for name in _FILES)
        address = Address(url=url, job=f"{self._namespace}/{self._job}", credentials=credentials, ca=ca, spec=spec)
        first = urlsplit(url.split(",")[0])
        if public_url and answers(public_url):  # the certificate has the name inside
            return replace(address, url=public_url, server_name=first.hostname)
        if answers(url):
            return address
        host = f"{nats_server(self._job)}.{self._namespace}.svc"
        if first.hostname != host:
            raise ConnectionFailed(
                f"NATS at {first.hostname} does not answer from here, and it is not the job's own server: pass "
                f"`address=` with a URL that does"
            )
        self._tunnel = Tunnel(self._api, self._namespace, self._server_pods, PORT, timeout_s=timeout_s)
        return replace(address, url=f"{first.scheme}://127.0.0.1:{self._tunnel.port}", server_name=host)

    def _server_pods(self) -> list[str]:
        """Return the names of the server's pods, the newest first."""
        labels = f"{JOB_LABEL}={self._job},{ROLE_LABEL}={Role.NATS}"
        found = self._api.list("Pod", self._namespace, labels=labels).items
        if self._tunnel is None:
            self._look()
        if not found:
            why = f"it is suspended, or over, or its server does not start: `rollfleet describe {self._job}`"
            raise ClusterError(f"NATS of {self._namespace}/{self._job} has no pod: {why}", 0, "NoPod")
        newest = sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)
        return [pod["metadata"]["name"] for pod in newest]

    def _write(self, secret: Mapping[str, Any]) -> None:
        for name in _FILES:
            data, file = file_of(secret, name), self._folder / name
            if data and not (file.exists() and file.read_bytes() == data):
                new = file.with_suffix(".new")
                new.touch(mode=0o600)
                new.write_bytes(data)
                os.replace(new, file)  # a reader sees the old one or the new one

    def _renew(self, every_s: float) -> None:
        name = credentials_secret(self._job, Role.LEARNER)
        while not self._closed.wait(every_s):
            try:
                secret = self._api.get("Secret", self._namespace, name)
                if secret is None and self._api.get(KIND, self._namespace, self._job) is None:
                    self._deleted()
                    return
            except ClusterError as error:  # the connection lasts without the API server
                log.debug("reading Secret %s/%s: %s", self._namespace, name, error)
                continue
            with suppress(OSError):  # closed meanwhile
                self._write(secret or {})


def wait_for_secret(
    api: ClusterApi, namespace: str, job: str, timeout_s: float, look: Callable[[], object]
) -> Mapping[str, Any]:
    """Return the learner's Secret, which the operator creates. Arguments and errors: see `JobAddress`."""
    name, until = credentials_secret(job, Role.LEARNER), time.monotonic() + timeout_s

    def read() -> Mapping[str, Any] | None:
        secret = api.get("Secret", namespace, name)
        if secret is None and api.get(KIND, namespace, job) is None:
            raise JobNotFound(f"the cluster has no job {namespace}/{job}; submit it, or check its name")
        return secret

    away_until_s = 0.0  # a cluster that has never answered is an error at once
    while True:
        late = time.monotonic() >= until
        if (secret := answered(read, away_until_s)) is not None:
            return secret
        away_until_s = until
        look()
        if late:
            raise ClusterError(
                f"the operator has not created Secret {namespace}/{name} within {timeout_s:g} s; see what "
                f"it reports with `rollfleet.Jobs().describe({job!r})`",
                0,
                "NotReady",
            )
        time.sleep(_LOOK_S)


def file_of(secret: Mapping[str, Any], name: str) -> bytes:
    """Return the content of a Secret's file; empty: it has none of this name."""
    return base64.b64decode((secret.get("data") or {}).get(name, ""))


def answers(urls: str) -> bool:
    """Return whether a server accepts connections from this machine; commas separate several."""
    for parts in map(urlsplit, urls.split(",")):
        with suppress(OSError):
            socket.create_connection((parts.hostname or "", parts.port or PORT), timeout=_DIRECT_S).close()
            return True
    return False

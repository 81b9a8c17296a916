"""Environment servers on other hosts, as a vector knows them."""

import logging
import math
import os
import socket
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import cloudpickle  # type: ignore[import-untyped]

from rollfleet.arguments import shown
from rollfleet.envs.array_pipe import ArrayPipe, tls
from rollfleet.envs.server import SharedArrays
from rollfleet.envs.server_process import Maker
from rollfleet.errors import ConnectionFailed, EnvironmentFailed, EnvironmentInvalid, JobInvalid
from rollfleet_api.address import worker_index
from rollfleet_api.env_servers import CERTIFICATE, CERTIFICATE_HOST, COUNT, PORT, SERVERS

CONNECT_S: Final = 120
"""Time for a server to start, or to start again."""

ANSWER_S: Final = 10.0
"""Time for the other end to prove who it is."""

GREETING: Final = b"rollfleet environments 1, Python %d.%d\n" % sys.version_info[:2]
_TOLD_S, _PAUSE_S = 10.0, 0.2
_ENDED: Final = ssl.SSLEOFError, ssl.SSLZeroReturnError  # which of them, depends on the version of Python

log = logging.getLogger(__name__)


class RemoteServers:
    """Servers that run at these addresses, as a `Launch` of a vector.

    Attributes:
        addresses: Their hosts and ports, in the order of the environments.
    """

    def __init__(self, addresses: Sequence[str], certificate: str | Path | None, patience_s: float = CONNECT_S) -> None:
        """Check addresses and certificate, and connect to none yet.

        Args:
            addresses: `host:port` of each server.
            certificate: See `tls`. None: the path is in the variable ROLLFLEET_ENV_CERTIFICATE.
            patience_s: How long a server may take to start.

        Raises:
            JobInvalid: One of them cannot be used.
        """
        if isinstance(addresses, str):
            raise JobInvalid(f"servers: {shown(addresses)} is one address; write a list of them")
        self.addresses = [_address(each) for each in addresses]
        if not (path := certificate or os.environ.get(CERTIFICATE)):
            raise JobInvalid(f"certificate: is missing; write the path of the servers' PEM file, or set {CERTIFICATE}")
        self._context, self._patience_s = tls(Path(path), serves=False), patience_s

    @classmethod
    def of_worker(cls, environ: Mapping[str, str], replicas: int) -> "RemoteServers | None":
        """Return the servers of the worker that these variables describe; None: its environments stay on its host."""
        if (pattern := environ.get(SERVERS)) is None:
            return None
        first = worker_index(environ) * replicas
        return cls([pattern.format(index) for index in range(first, first + replicas)], environ.get(CERTIFICATE))

    @classmethod
    def of_learner(cls, environ: Mapping[str, str]) -> "RemoteServers | None":
        """Return the servers of the learner that these variables describe; None: it has none of its own.

        It waits for them as it waits for workers: the cluster, or a queue, may take hours.
        """
        if (count := environ.get(COUNT)) is None:
            return None
        addresses = [environ[SERVERS].format(index) for index in range(int(count))]
        return cls(addresses, environ.get(CERTIFICATE), patience_s=math.inf)

    def __call__(self, index: int, makers: Sequence[Maker], shared: SharedArrays, group: slice) -> "RemoteServer":
        """Connect to the server of this index: see `Launch`."""
        return RemoteServer(self.addresses[index], self._context, self._patience_s, makers, shared, group)


class RemoteServer:
    """The environments that a server on another host holds for this vector. See `EnvServer`.

    They end with the connection, and other ones begin with the next.
    """

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        patience_s: float,
        makers: Sequence[Maker],
        shared: SharedArrays,
        group: slice,
    ) -> None:
        """Wait until the server runs, for `patience_s`, and let it make these environments.

        Raises:
            EnvironmentInvalid: What makes them cannot be pickled.
            ConnectionFailed: It cannot be reached. EnvironmentFailed: It could not make them, or is another program.
        """
        self.name = "environment server {}:{}".format(*address)
        try:
            setup = cloudpickle.dumps((list(makers), shared.seen.space, shared.acted.space))
        except Exception as error:
            raise EnvironmentInvalid(
                f"{self.name}: the function that makes its environments cannot be pickled: {error!r}; write one that "
                "makes all that it needs itself"
            ) from error
        self.pipe = self._connected(address, context, patience_s)
        try:
            self.pipe.send_bytes(GREETING + setup)
            refused = self.pipe.recv_bytes().decode() if self.pipe.poll(CONNECT_S) else "it does not answer"
        except ConnectionError as error:  # it rejects this certificate, for one
            refused = str(error)
        if refused:
            self.pipe.close()
            raise EnvironmentFailed(f"{self.name}: {refused}")
        observations, actions, outcomes = shared.views(group)
        self.pipe.carry(sent=actions, received=[*observations, *outcomes])

    def _connected(self, address: tuple[str, int], context: ssl.SSLContext, patience_s: float) -> ArrayPipe:
        since_s = told_s = time.monotonic()
        while True:
            try:
                stream = socket.create_connection(address, timeout=ANSWER_S)
                stream = context.wrap_socket(stream, server_hostname=CERTIFICATE_HOST)  # closes it if that fails
                stream.settimeout(None)
                return ArrayPipe(stream)
            except OSError as error:
                if isinstance(error, ssl.SSLError) and not isinstance(error, _ENDED):
                    raise EnvironmentFailed(f"{self.name} has not the certificate of this program: {error}") from error
                now_s = time.monotonic()
                if now_s - since_s >= patience_s:
                    raise ConnectionFailed(f"{self.name} did not answer for {patience_s:g} s: {error}") from error
                if now_s - told_s >= _TOLD_S:
                    told_s = now_s
                    log.warning("waits for %s since %.0f s: %s", self.name, now_s - since_s, error)
                time.sleep(_PAUSE_S)

    def poll(self, timeout_s: float | None) -> bool:
        """See `EnvServer`."""
        return self.pipe.closed or self.pipe.poll(timeout_s)

    def is_alive(self) -> bool:
        """See `EnvServer`."""
        return not self.pipe.closed

    def end_of(self, *, built: bool) -> str:
        """See `EnvServer`."""
        return f"{self.name} closed the connection" + ("" if built else " while it made its environments")

    def join(self, timeout_s: float | None) -> None:
        """See `EnvServer`."""

    def kill(self) -> None:
        """See `EnvServer`. The server ends its process when it notices."""
        self.pipe.close()


def _address(text: str) -> tuple[str, int]:
    try:
        found = urlsplit(f"//{text}")
        if found.hostname and found.port and not (found.path or found.username):
            return found.hostname, found.port
    except (TypeError, ValueError):
        pass
    raise JobInvalid(f"servers: {shown(text)} is no address; write host:port, such as 'localhost:{PORT}'")

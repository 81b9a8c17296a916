"""The program `rollfleet env-server`."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil
import trustme

ROOT = Path(__file__).parents[3]


class Host:
    """A server that runs until the end of the block; it imports tests, and modules of a folder.

    Attributes:
        address: Its host and port.
        pid: Its process.
    """

    def __init__(
        self,
        certificate: Path,
        port: int = 0,
        *,
        path: Path = ROOT,
        python: str = sys.executable,
        idle_timeout_s: float = 0,
    ) -> None:
        command = [python, "-m", "rollfleet", "env-server", f"--port={port}", f"--certificate={certificate}"]
        command.append(f"--idle-timeout={idle_timeout_s}")
        variables = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": f"{path}:{ROOT}:{ROOT / 'sdk'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.program = subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE)
        self.pid = self.program.pid
        found = re.search(r"listens on port (\d+)", self.line())
        assert found
        self.port = int(found[1])
        self.address = f"localhost:{self.port}"

    def line(self) -> str:
        """Wait for the next line of its output."""
        assert self.program.stdout
        return self.program.stdout.readline()

    def vectors(self) -> list[int]:
        """The processes that hold the environments of vectors."""
        return [child.pid for child in psutil.Process(self.pid).children()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill it."""
        self.program.kill()
        self.program.communicate()


def write_certificate(path: Path) -> Path:
    """Write a private key, its certificate, and that of a new authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("environments")
    parts = [issued.private_key_pem, *issued.cert_chain_pems, authority.cert_pem]
    path.write_bytes(b"".join(part.bytes() for part in parts))
    return path

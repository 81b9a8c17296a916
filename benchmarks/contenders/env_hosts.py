"""Programs `rollfleet env-server` of this machine, as those of other hosts are."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


@contextmanager
def hosts(number: int) -> Iterator[dict[str, Any]]:
    """Start them. Returns the keywords of `rollfleet.make_vec` with their addresses."""
    with ExitStack() as stack:
        certificate = write_certificate(Path(stack.enter_context(TemporaryDirectory())))
        programs = [stack.enter_context(host(certificate)) for _ in range(number)]
        yield {"servers": [f"localhost:{port}" for _, port in programs], "certificate": certificate}


@contextmanager
def host(certificate: Path) -> Iterator[tuple[int, str]]:
    """Start one. Returns its process id, and its port, once it listens."""
    command = [sys.executable, "-m", "rollfleet", "env-server", "--port=0", f"--certificate={certificate}"]
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}  # it imports `work`
    with subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE) as program:
        assert program.stdout
        try:
            yield program.pid, program.stdout.readline().split()[-1]
        finally:
            program.terminate()
            program.communicate()  # what it still writes


def write_certificate(folder: Path) -> Path:
    """Make the file that servers and their vectors have."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = ["-subj", "/CN=environments", "-addext", "subjectAltName=DNS:environments"]
    files = ["-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", *names, *files], check=True, capture_output=True)
    certificate.write_bytes(key.read_bytes() + certificate.read_bytes())
    return certificate

"""The operator's program, as a pod runs it: with the environment that the chart gives it."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.control.kubernetes import KEY
from tests.control.wire.job_nats import OrganisationNats
from tests.ports import free_ports

StartProgram = Callable[..., "OperatorProgram"]


class OperatorProgram:
    """An operator for one namespace.

    Args:
        pod: The name of its pod.
        kubeconfig: Its access to the API server.
        settings: Further environment variables.

    Attributes:
        image: The image of the workers that it starts.
        log: The file of what it prints.
    """

    def __init__(
        self, pod: str, namespace: str, kubeconfig: Path, nats: OrganisationNats, settings: Mapping[str, str]
    ) -> None:
        (self._port,) = free_ports(1)
        self.image = f"{pod}:1"
        environ = {
            "KUBECONFIG": str(kubeconfig),
            "ROLLFLEET_NAMESPACES": namespace,
            "ROLLFLEET_KEY_SECRET": f"{namespace or 'default'}/{KEY}",
            "ROLLFLEET_NATS_URL": nats.url,
            "ROLLFLEET_NATS_EXTERNAL": str(nats.given),
            "ROLLFLEET_POD": pod,
            "ROLLFLEET_PORT": str(self._port),
            "ROLLFLEET_WORKER_IMAGE": self.image,
        }
        command = [sys.executable, "-P", "-m", "rollfleet_operator"]
        self.log = nats.folder / f"{pod}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **environ, **settings}, stdout=log, stderr=log)

    def answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

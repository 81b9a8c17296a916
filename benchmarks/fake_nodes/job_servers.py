"""The NATS server of each job: as its Secret says, at an address of this machine that has the name of its Service."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.control.kubernetes import ApiServer

from rollfleet.nats.embedded_server import find_nats_server
from rollfleet_api.kubernetes_names import credentials_secret, nats_server
from rollfleet_api.nats_server import OWNER, PORT
from rollfleet_api.permissions import Role
from rollfleet_operator.names import server_secret
from rollfleet_operator.nats_access import Login

_INSIDE: Final = "ROLLFLEET_OWN_HOSTS"


def with_own_hosts() -> None:
    """Start this program again with an /etc/hosts of its own, which it may change."""
    if _INSIDE not in os.environ:
        command = ["unshare", "--mount", sys.executable, "-P", *sys.argv]
        os.execvpe(command[0], command, os.environ | {_INSIDE: "1"})


class JobServers:
    """The servers of these jobs, in one namespace."""

    def __init__(self, folder: Path, server: ApiServer, namespace: str, jobs: Iterable[str]) -> None:
        self._folder, self._server, self._namespace = folder, server, namespace
        self._addresses = {job: f"127.0.{1 + n // 250}.{1 + n % 250}" for n, job in enumerate(jobs)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        hosts = folder / "hosts"
        names = [f"{address} {nats_server(job)}.{namespace}.svc" for job, address in self._addresses.items()]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)

    def start(self) -> dict[str, Login]:
        """Start those whose Secrets exist. Return how the operator reaches each that runs, by job."""
        path = f"/api/v1/namespaces/{self._namespace}/secrets"
        secrets = {each["metadata"]["name"]: each["data"] for each in self._server.request("GET", path)["items"]}
        logins = {}
        for job, address in self._addresses.items():
            worker = secrets.get(credentials_secret(job, Role.WORKER))
            if worker is None or (files := secrets.get(server_secret(job))) is None:
                continue
            configuration = json.loads(base64.b64decode(files["nats.json"]))
            if job not in self._processes:
                self._processes[job] = self._begin(job, address, files, configuration)
            (owner,) = [each for each in configuration["authorization"]["users"] if each["user"] == OWNER]
            url, ca = (base64.b64decode(worker[name]) for name in ("url", "ca.crt"))
            logins[job] = Login(url=url.decode(), credentials=f"{OWNER}:{owner['password']}".encode(), ca=ca)
        return logins

    def _begin(
        self, job: str, address: str, files: dict[str, str], configuration: dict[str, Any]
    ) -> subprocess.Popen[bytes]:
        folder = self._folder / f"nats-{job}"
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(base64.b64decode(data))
        tls = configuration["tls"] | {"cert_file": str(folder / "tls.crt"), "key_file": str(folder / "tls.key")}
        here = {"listen": f"{address}:{PORT}", "tls": tls, "http": f"{address}:8222"}
        (folder / "nats.json").write_text(json.dumps(configuration | here))
        with (folder / "log").open("wb") as log:
            return subprocess.Popen([str(find_nats_server()), "-c", str(folder / "nats.json")], stderr=log)

    def stop(self) -> None:
        """End them all."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(30)

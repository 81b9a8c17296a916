"""Access to a cluster by running kubectl, with the user's configuration, login and permissions."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from rollfleet.cli.kubectl_objects import View
from rollfleet.errors import KubectlFailed, KubectlMissing

JOBS: Final = "collectorjobs.rollfleet.dev"
"""The resource's name for kubectl. Not `cj`, which kubectl reads as CronJobs."""

_REQUEST_TIMEOUT_S: Final = 15
_ADVICE: Final = {
    "doesn't have a resource type": "Rollfleet is not installed on this cluster; see docs/install.md",
    "no configuration has been provided": "name the cluster with --kubeconfig or KUBECONFIG",
    "was refused - did you specify the right host": "name the cluster with --kubeconfig, KUBECONFIG or --context",
}
_LOG_LINE: Final = re.compile(r"[EIWF]\d{4} \d\d:\d\d:")

S = TypeVar("S", bound=View)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """A kubectl for one cluster and one namespace.

    Attributes:
        program: The path of kubectl.
        cluster: Options that name the cluster.
        namespace: The namespace. None: the default of kubectl's configuration.
    """

    program: str
    cluster: tuple[str, ...] = ()
    namespace: str | None = None

    @classmethod
    def find(cls, *, context: str | None = None, namespace: str | None = None, kubeconfig: Path | None = None) -> Self:
        """Find kubectl on the PATH.

        Raises:
            KubectlMissing: kubectl is not on the PATH.
        """
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlMissing(
                "this command needs kubectl, which is not on the PATH: install the version of your cluster"
            )
        options = (("context", context), ("kubeconfig", kubeconfig))
        return cls(
            program=program,
            cluster=tuple(f"--{name}={value}" for name, value in options if value is not None),
            namespace=namespace,
        )

    def within(self, namespace: str | None) -> Self:
        """Return a kubectl for another namespace of the cluster; None keeps this one."""
        return replace(self, namespace=namespace) if namespace else self

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        namespace = [f"--namespace={self.namespace}"] if self.namespace else []
        return [self.program, *self.cluster, *namespace, *arguments]

    def ask(self, *arguments: str) -> str:
        """Run kubectl and return its standard output.

        Raises:
            KubectlFailed: kubectl exited with an error.
        """
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise KubectlFailed(done.returncode, _explained(done.stderr.strip()))
        return done.stdout

    def get(self, model: type[S], kind: str, *arguments: str) -> list[S]:
        """Get the objects of a kind.

        Args:
            model: The model to parse each object with.
            kind: The resource's name for kubectl.
            *arguments: Names, or options that select objects.

        Raises:
            KubectlFailed: kubectl failed, or an object does not fit the model.
        """
        text = self.ask("get", kind, *arguments, "--output=json", f"--request-timeout={_REQUEST_TIMEOUT_S}s")
        data = json.loads(text)
        try:
            found = TypeAdapter(list[model]).validate_python(  # type: ignore[valid-type]  # a type known only at run time
                data["items"] if data.get("kind", "").endswith("List") else [data], by_alias=True, by_name=False
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise KubectlFailed(
                0, f"{kind}: {where}: {first['msg']}; is this rollfleet older than the one on the cluster?"
            ) from None
        return list(found)

    def show(self, *arguments: str) -> int:
        """Run kubectl with this program's output. Return its exit code."""
        return subprocess.run(self.command(*arguments), stdin=subprocess.DEVNULL).returncode


def _explained(message: str) -> str:
    """Return kubectl's errors on one line, without the lines of its own log, and with advice where we have some."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _LOG_LINE.match(line)]
    advice = [advice for words, advice in _ADVICE.items() if words in message][:1]
    return "; ".join([*lines, *advice])

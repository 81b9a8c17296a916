"""Speaks to a cluster by running kubectl, as whoever types the command: with its configuration, login and rights."""

import json
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from rollfleet.cli.kubectl_objects import View
from rollfleet.errors import KubectlFailed, KubectlMissing

JOBS: Final = "collectorjobs.rollfleet.dev"
"""What kubectl calls them. Not `cj`: that is read as CronJobs, which had the name first."""

_ANSWER_S: Final = 15
_WHAT_TO_DO: Final = {
    "doesn't have a resource type": "Rollfleet is not installed on this cluster, see docs/install.md",
    "no configuration has been provided": "name the cluster with --kubeconfig or KUBECONFIG",
    "was refused - did you specify the right host": "name the cluster with --kubeconfig, KUBECONFIG or --context",
}

S = TypeVar("S", bound=View)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """A kubectl that is told which cluster, and which namespace.

    Attributes:
        program: The program.
        cluster: Options that name the cluster.
        namespace: The namespace; None: the one that kubectl's configuration says.
    """

    program: str
    cluster: tuple[str, ...] = ()
    namespace: str | None = None

    @classmethod
    def find(cls, *, context: str | None = None, namespace: str | None = None, kubeconfig: Path | None = None) -> Self:
        """The kubectl on the PATH.

        Raises:
            KubectlMissing: There is none.
        """
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlMissing(
                "no kubectl found on the PATH, which this command runs: install the one of your cluster's version"
            )
        said = (("context", context), ("kubeconfig", kubeconfig))
        return cls(
            program=program,
            cluster=tuple(f"--{name}={value}" for name, value in said if value is not None),
            namespace=namespace,
        )

    def within(self, namespace: str | None) -> Self:
        """The same cluster, and another namespace where one is named."""
        return replace(self, namespace=namespace) if namespace else self

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        namespace = [f"--namespace={self.namespace}"] if self.namespace else []
        return [self.program, *self.cluster, *namespace, *arguments]

    def ask(self, *arguments: str) -> str:
        """What kubectl writes to standard output.

        Raises:
            KubectlFailed: It ended with an error.
        """
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise KubectlFailed(done.returncode, _explained(done.stderr.strip()))
        return done.stdout

    def get(self, model: type[S], kind: str, *arguments: str) -> list[S]:
        """Objects of a kind.

        Args:
            model: What is read of each.
            kind: As kubectl names it.
            *arguments: Names, or options that select.

        Raises:
            KubectlFailed: They could not be had, or read.
        """
        text = self.ask("get", kind, *arguments, "--output=json", f"--request-timeout={_ANSWER_S}s")
        data = json.loads(text)
        try:
            found = TypeAdapter(list[model]).validate_python(  # type: ignore[valid-type]  # a type only now
                data["items"] if data.get("kind", "").endswith("List") else [data], by_alias=True, by_name=False
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise KubectlFailed(
                0, f"{kind}: {where}: {first['msg']}; is this rollfleet older than the cluster's?"
            ) from None
        return list(found)

    def show(self, *arguments: str) -> int:
        """Let kubectl write to where we write. Returns its exit code."""
        return subprocess.run(self.command(*arguments), stdin=subprocess.DEVNULL).returncode


def _explained(message: str) -> str:
    told = next((what for words, what in _WHAT_TO_DO.items() if words in message), None)
    return f"{message}\n{told}" if told else message

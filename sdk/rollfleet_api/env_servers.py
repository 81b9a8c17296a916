"""The environment servers of a job: pods without a policy that hold the environments of its workers.

The operator starts them. Each worker of `replicas` servers finds its own by the variables below.
"""

from typing import Final

from pydantic import Field

from rollfleet_api.address import FILES
from rollfleet_api.fields import FreeForm, Model
from rollfleet_api.kubernetes_names import env_servers
from rollfleet_api.placement import ResourcesSpec

MAX_SERVERS: Final = 256
"""The most servers of one worker."""

PORT: Final = 7700

SERVERS: Final = "ROLLFLEET_ENV_SERVERS"
"""Variable of a worker: the address of a server, with `{}` in place of its index. Worker w has those from w * replicas.

Example: `cartpole-servers-0123abcd-{}.cartpole-servers.default.svc:7700`
"""

COUNT: Final = "ROLLFLEET_ENV_SERVER_COUNT"
"""Variable of the learner of a job without workers, beside `SERVERS`: all servers are its own."""

CERTIFICATE: Final = "ROLLFLEET_ENV_CERTIFICATE"
"""Variable of workers and servers: a PEM file with a private key, its certificate, and that of the job's authority."""

CERTIFICATE_FILE: Final = FILES / "environments.pem"

CERTIFICATE_HOST: Final = "environments"
"""The name in that certificate, whatever the host."""


class EnvServersSpec(Model):
    """The pods that hold the environments of each worker."""

    replicas: int = Field(
        ge=1,
        le=MAX_SERVERS,
        description="Servers of each worker, or of a job without any. Its environments are divided among them.",
        examples=[4],
    )
    resources: ResourcesSpec = Field(default=ResourcesSpec(), description="The resources of each server.")
    template: FreeForm = Field(
        default={},
        description="Changes to the servers' pod template, whose container is `env-server`. Its priority class and "
        "pull secrets are those of the workers' `template`, unless they are set here.",
    )


def address_of(run: str, job: str, namespace: str) -> str:
    """Return the address of each server whose pod is of the Kubernetes Job `run`, with `{}` in place of its index.

    Kubernetes names the host of such a pod after the Job and the index.
    """
    return f"{run}-{{}}.{env_servers(job)}.{namespace}.svc:{PORT}"

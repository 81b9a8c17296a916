"""Workers with more processes of environments than CPUs: a pure function of a job's spec."""

from math import ceil

from pydantic import Field

from rollfleet_api.quantity import parse_quantity
from rollfleet_api.views import JobSpecView, View


class _EnvView(View):
    num_envs: int = 1
    vectorization: str = ""
    processes: int = 0
    servers: dict[str, object] | None = None


class _ResourcesView(View):
    requests: dict[str, object] = Field(default={})
    limits: dict[str, object] = Field(default={})


def crowding(spec: JobSpecView, machine_cpus: int | None = None) -> str:
    """Explain that a worker's environments have more processes than CPUs. Empty: they have not, or none is known.

    All workers share `machine_cpus`; None: each has those that its pod may use, or else requests.

    Example:
        >>> job = {"env": {"numEnvs": 64, "vectorization": "Async"}, "resources": {"limits": {"cpu": "4"}}}
        >>> crowding(JobSpecView.model_validate(job))
        '64 processes of environments share 4 CPUs in each worker; light steps are faster with `env.processes: 4`'
    """
    extra = spec.model_extra or {}
    env = _EnvView.model_validate(extra.get("env") or {})
    resources = _ResourcesView.model_validate(extra.get("resources") or {})
    given = resources.limits.get("cpu", resources.requests.get("cpu"))
    processes = (env.processes or env.num_envs) if env.vectorization == "Async" and not env.servers else 1
    if machine_cpus is not None:
        cpus = machine_cpus / spec.workers
    elif given is not None:
        cpus = float(parse_quantity(str(given)))
    else:
        return ""
    if processes <= max(1, ceil(cpus)):
        return ""
    advice = f"light steps are faster with `env.processes: {max(1, ceil(cpus))}`"
    if (extra.get("failure") or {}).get("environments") is not None:
        advice = "have more CPUs (`resources`), or fewer `env.numEnvs`: each that can be replaced has a process"
    return f"{processes} processes of environments share {cpus:g} CPU{'s' * (cpus != 1)} in each worker; {advice}"

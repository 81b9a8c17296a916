"""An environment of a program as a job names it."""

import re
import secrets
from collections.abc import Mapping
from typing import Any

import gymnasium

from rollfleet.arguments import as_json
from rollfleet.cluster.sources import Sources
from rollfleet.errors import JobInvalid
from rollfleet_api.metadata import MAX_NAME_LENGTH


def env_fields(env: Any, env_kwargs: Mapping[str, Any] | None, sources: Sources) -> dict[str, Any]:
    """Return the environment of a program as the `env` of a job, in the words of YAML, and keep its code.

    Raises:
        JobInvalid: Pods could not import it, or its arguments are not those of a job.
    """
    if isinstance(env, str):
        _check_registration(env)
        if ":" in env:
            sources.keep(env.partition(":")[0])
        found: dict[str, Any] = {"id": env}
        kwargs = dict(env_kwargs or {})
    else:
        named = sources.name(env, "env")
        found, kwargs = {"entrypoint": named.entrypoint}, named.kwargs | dict(env_kwargs or {})
    return found | ({"kwargs": as_json(kwargs, "env_kwargs")} if kwargs else {})


def _check_registration(env_id: str) -> None:
    """Check that workers know an id: those of installed packages, and of the module that it names."""
    known = gymnasium.registry.get(env_id)
    entry = known.entry_point if known else None
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    sources = Sources()
    if module == "__main__":
        own = True
    else:
        sources.keep(module)
        own = bool(sources.files)
    if own:
        raise JobInvalid(
            f"env: {env_id!r} is registered by a module of yours, which workers do not import; write "
            f"`env='my_module:{env_id}'` with the module that registers it, or pass its class as `env`"
        )


def new_name(env: Any) -> str:
    """Return a new name for a job with this environment."""
    first = env[0] if isinstance(env, list | tuple) else env
    text = first if isinstance(first, str) else getattr(first, "__name__", "collector")
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "collector"
    return f"{slug[: MAX_NAME_LENGTH - 7].rstrip('-')}-{secrets.token_hex(3)}"

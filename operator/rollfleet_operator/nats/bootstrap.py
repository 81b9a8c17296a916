"""Fills the Secret of an installation with its keys, once, and writes the operator's own to a folder.

`python -m rollfleet_operator.nats.bootstrap SECRET FOLDER` runs before the operator, in its pod. The chart makes the
Secret without content, so that it comes and goes with the release; what is in it is never written twice, and the
Secret is made immutable, so that no upgrade can empty it.
"""

import asyncio
import base64
import logging
import os
import sys
import time
from pathlib import Path
from typing import Final

from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError
from rollfleet_operator.login import login
from rollfleet_operator.nats.tokens import SEED_BYTES
from rollfleet_operator.nats.trust import SEED_FILE, new_keys, secret_files

log = logging.getLogger(__name__)

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
ATTEMPTS: Final = 5
_SECRET: Final = "Secret"
_CONFLICT: Final = 409


async def ensure_keys(api: Api, namespace: str, name: str, folder: Path, *, now_s: int, entropy: bytes) -> bool:
    """See that the Secret holds keys, and that the folder has the operator's.

    Returns:
        Whether they were made now.

    Raises:
        ApiError: The Secret is not there, or may not be read or written.
    """
    for _ in range(ATTEMPTS):
        secret = await api.get(_SECRET, namespace, name)
        if secret is None:
            raise ApiError(404, "NotFound", f"there is no Secret {namespace}/{name}: the chart makes it")
        seed = (secret.get("data") or {}).get(SEED_FILE)
        if seed:
            _write(folder / SEED_FILE, base64.b64decode(seed))
            return False
        made = {file: text.encode() for file, text in secret_files(new_keys(entropy), now_s=now_s).items()}
        patch = {
            "metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]},  # or somebody was here before us
            "data": {file: base64.b64encode(text).decode() for file, text in made.items()},
            "immutable": True,
        }
        try:
            await api.patch(_SECRET, namespace, name, patch)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            continue
        _write(folder / SEED_FILE, made[SEED_FILE])
        return True
    raise ApiError(_CONFLICT, "Conflict", f"Secret {namespace}/{name} changed {ATTEMPTS} times while it was filled")


def _write(file: Path, content: bytes) -> None:
    file.touch(mode=0o600)
    file.write_bytes(content)


async def _run(name: str, folder: Path) -> None:
    namespace = NAMESPACE_FILE.read_text().strip()
    async with Api(login) as api:
        made = await ensure_keys(api, namespace, name, folder, now_s=int(time.time()), entropy=os.urandom(SEED_BYTES))
    log.info("Secret %s/%s: %s", namespace, name, "keys made" if made else "keys are there")


def main(arguments: list[str]) -> int:
    """The program."""
    if len(arguments) != 2:
        print("usage: python -m rollfleet_operator.nats.bootstrap SECRET FOLDER", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        asyncio.run(_run(arguments[0], Path(arguments[1])))
    except ApiError as error:
        print(f"the keys of NATS could not be made sure of: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

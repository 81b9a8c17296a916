"""A program that creates an installation's NATS keys once, and writes the operator's own key into a folder.

`python -m rollfleet_operator.nats.bootstrap SECRET FOLDER` runs before the operator, in its pod. The chart creates an
empty Secret, so that it belongs to the release. The program never overwrites its content and makes it immutable, so
that no upgrade can empty it.
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
    """Create the keys in the Secret, unless it has them, and write the operator's key into the folder.

    Returns:
        Whether the keys were created now.

    Raises:
        ApiError: The Secret does not exist, or may not be read or written.
    """
    for _ in range(ATTEMPTS):
        secret = await api.get(_SECRET, namespace, name)
        if secret is None:
            raise ApiError(404, "NotFound", f"Secret {namespace}/{name} does not exist: the chart creates it")
        seed = (secret.get("data") or {}).get(SEED_FILE)
        if seed:
            _write(folder / SEED_FILE, base64.b64decode(seed))
            return False
        files = {file: text.encode() for file, text in secret_files(new_keys(entropy), now_s=now_s).items()}
        patch = {
            "metadata": {
                "resourceVersion": secret["metadata"]["resourceVersion"]
            },  # a conflict if another client was faster
            "data": {file: base64.b64encode(text).decode() for file, text in files.items()},
            "immutable": True,
        }
        try:
            await api.patch(_SECRET, namespace, name, patch)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            continue
        _write(folder / SEED_FILE, files[SEED_FILE])
        return True
    raise ApiError(_CONFLICT, "Conflict", f"Secret {namespace}/{name} changed {ATTEMPTS} times during its creation")


def _write(file: Path, content: bytes) -> None:
    file.touch(mode=0o600)
    file.write_bytes(content)


async def _run(name: str, folder: Path) -> None:
    namespace = NAMESPACE_FILE.read_text().strip()
    async with Api(login) as api:
        created = await ensure_keys(
            api, namespace, name, folder, now_s=int(time.time()), entropy=os.urandom(SEED_BYTES)
        )
    log.info("Secret %s/%s: %s", namespace, name, "keys created" if created else "keys exist")


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    if len(arguments) != 2:
        print("usage: python -m rollfleet_operator.nats.bootstrap SECRET FOLDER", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        asyncio.run(_run(arguments[0], Path(arguments[1])))
    except ApiError as error:
        print(f"creating the keys of NATS failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

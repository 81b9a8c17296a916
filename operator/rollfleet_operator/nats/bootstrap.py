"""A program that runs before the operator, in its pod: `python -m rollfleet_operator.nats.bootstrap`.

`keys SECRET FOLDER` creates an installation's NATS keys once, and writes the operator's own key into a folder. The
chart creates an empty Secret, so that it belongs to the release. The program never overwrites its content and makes it
immutable, so that no upgrade can empty it.

`installation RELEASE FILE` writes the id of an installation, if a NATS that others use too signs accounts with a shared
key. The UID of the operator's namespace tells clusters apart, and stays the same when the release is installed again.
"""

import asyncio
import base64
import logging
import os
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Final

from rollfleet_operator.api import Api, login
from rollfleet_operator.errors import ApiError
from rollfleet_operator.nats.tokens import SEED_BYTES
from rollfleet_operator.nats.trust import SEED_FILE, new_keys, secret_files

log = logging.getLogger(__name__)

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
ATTEMPTS: Final = 5


async def ensure_keys(api: Api, namespace: str, name: str, folder: Path, *, now_s: int, entropy: bytes) -> bool:
    """Create the keys in the Secret, unless it has them, and write the operator's key into the folder.

    Returns:
        Whether the keys were created now.

    Raises:
        ApiError: The Secret does not exist, or may not be read or written.
    """
    for _ in range(ATTEMPTS):
        secret = await api.get("Secret", namespace, name)
        if secret is None:
            raise ApiError(404, "NotFound", f"Secret {namespace}/{name} does not exist: the chart creates it")
        seed = (secret.get("data") or {}).get(SEED_FILE)
        if seed:
            _write(folder / SEED_FILE, base64.b64decode(seed))
            return False
        files = {file: text.encode() for file, text in secret_files(new_keys(entropy), now_s=now_s).items()}
        patch = {
            # A conflict if another client was faster.
            "metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]},
            "data": {file: base64.b64encode(text).decode() for file, text in files.items()},
            "immutable": True,
        }
        try:
            await api.patch("Secret", namespace, name, patch)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            continue
        _write(folder / SEED_FILE, files[SEED_FILE])
        return True
    raise ApiError(409, "Conflict", f"Secret {namespace}/{name} changed {ATTEMPTS} times during its creation")


def _write(file: Path, content: bytes, mode: int = 0o600) -> None:
    file.touch(mode=mode)
    file.write_bytes(content)


async def installation_id(api: Api, namespace: str, release: str) -> str:
    """Return the id of a release; empty: the operator may not read its namespace.

    Raises:
        ApiError: The API server did not answer.
    """
    try:
        found = await api.get("Namespace", None, namespace)
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        log.warning(
            "this installation has no id, and cannot know its own jobs; set the chart's `operator.installation`: %s",
            error,
        )
        return ""
    return f"{release}.{found['metadata']['uid']}" if found else ""


async def _run(command: str, name: str, target: Path) -> None:
    namespace = NAMESPACE_FILE.read_text().strip()
    async with Api(login) as api:
        if command == "installation":
            _write(target, (await installation_id(api, namespace, name)).encode(), mode=0o644)
            return
        created = await ensure_keys(
            api, namespace, name, target, now_s=int(time.time()), entropy=os.urandom(SEED_BYTES)
        )
    log.info("Secret %s/%s: %s", namespace, name, "keys created" if created else "keys exist")


def main(command: str, name: str, target: str) -> int:
    """Run the program; return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        asyncio.run(_run(command, name, Path(target)))
    except ApiError as error:
        print(f"preparing the {command} failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""A program that writes the id of an installation: `python -m rollfleet_operator.nats.installation RELEASE FILE`.

It runs before the operator, in its pod, if a NATS that others use too signs accounts with a shared key. The UID of the
operator's namespace tells clusters apart, and stays the same when the release is installed again.
"""

import asyncio
import logging
import sys
from http import HTTPStatus
from pathlib import Path

from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError
from rollfleet_operator.login import login
from rollfleet_operator.nats.bootstrap import NAMESPACE_FILE

log = logging.getLogger(__name__)


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


async def _read(namespace: str, release: str) -> str:
    async with Api(login) as api:
        return await installation_id(api, namespace, release)


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    if len(arguments) != 2:
        print("usage: python -m rollfleet_operator.nats.installation RELEASE FILE", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        Path(arguments[1]).write_text(asyncio.run(_read(NAMESPACE_FILE.read_text().strip(), arguments[0])))
    except ApiError as error:
        print(f"reading the operator's namespace failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

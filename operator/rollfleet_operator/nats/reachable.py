"""A program that checks an installation: `python -m rollfleet_operator.nats.reachable READY_URL NATS_URL [CA_FILE]`.

`helm test` runs it in the cluster. NATS must answer, and must refuse it.
"""

import asyncio
import os
import sys
import urllib.request
from pathlib import Path

from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Connection, own_user
from rollfleet_operator.nats.tokens import SEED_BYTES, Kind, Signer
from rollfleet_operator.nats_port import Endpoint

TIMEOUT_S = 10


async def refusal(server: Endpoint) -> str:
    """Return the error with which NATS refuses a client whose account it does not know.

    Raises:
        RuntimeError: NATS accepted the client.
        NatsUnavailable: NATS could not be reached, or its certificate is not trusted.
    """
    stranger = own_user(Signer.of(Kind.ACCOUNT, os.urandom(SEED_BYTES)))
    connection = Connection(server, stranger, "test")
    try:
        await connection.client()
    except NatsUnavailable as error:
        if "authorization" in str(error).lower():
            return str(error)
        raise
    await connection.close()
    raise RuntimeError(f"NATS at {server.url} accepts clients without credentials")


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    ready, url, *ca = arguments
    with urllib.request.urlopen(ready, timeout=TIMEOUT_S) as answer:
        print(f"{ready}: {answer.status}")
    server = Endpoint(url=url, ca=Path(ca[0]).read_bytes() if ca else None)
    print(f"{url}: {asyncio.run(refusal(server))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

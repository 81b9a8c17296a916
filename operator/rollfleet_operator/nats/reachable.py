"""A program that checks an installation: `python -m rollfleet_operator.nats.reachable READY_URL NATS_URL [CA_FILE]`.

`helm test` runs it in the cluster. It has no credentials: NATS must answer, and must refuse it.
"""

import asyncio
import sys
import urllib.request
from pathlib import Path

import nats

from rollfleet_operator.nats.client import Client
from rollfleet_operator.nats.connection import Server, drop_socket

TIMEOUT_S = 10


async def refusal(server: Server) -> str:
    """Return the error with which NATS refuses a client without credentials.

    Raises:
        RuntimeError: NATS accepted the client.
        OSError: NATS could not be reached, or its certificate is not trusted.
    """
    client, errors = Client(), list[Exception]()

    async def on_error(error: Exception) -> None:
        errors.append(error)
        drop_socket(client)

    try:
        await client.connect(
            server.url.split(","),
            tls=server.context(),
            error_cb=on_error,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            connect_timeout=TIMEOUT_S,
        )
    except nats.errors.Error as error:
        refused = next((each for each in [error, *errors] if "authorization" in str(each).lower()), None)
        if refused is None:
            raise OSError(f"NATS at {server.url} was not reached: {[error, *errors]!r}") from error
        return str(refused)
    finally:
        drop_socket(client)
    raise RuntimeError(f"NATS at {server.url} accepts clients without credentials")


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    ready, url, *ca = arguments
    with urllib.request.urlopen(ready, timeout=TIMEOUT_S) as answer:
        print(f"{ready}: {answer.status}")
    server = Server(url=url, ca=Path(ca[0]).read_bytes() if ca else None)
    print(f"{url}: {asyncio.run(refusal(server))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

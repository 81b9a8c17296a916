"""Sees that an installation answers: `python -m rollfleet_operator.nats.reachable READY_URL NATS_URL [CA_FILE]`.

`helm test` runs it in the cluster. It has no credentials: that NATS refuses it as a stranger is what is expected.
"""

import asyncio
import sys
import urllib.request
from pathlib import Path

import nats
from nats.aio.client import Client

from rollfleet_operator.nats.connection import Server, drop_socket

TIMEOUT_S = 10


async def greeted(server: Server) -> str:
    """The word with which NATS refuses a stranger.

    Raises:
        RuntimeError: It let the stranger in.
        OSError: It was not reached, or its certificate is not the one to trust.
    """
    client, heard = Client(), list[Exception]()

    async def on_error(error: Exception) -> None:
        heard.append(error)
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
        refusal = next((each for each in [error, *heard] if "authorization" in str(each).lower()), None)
        if refusal is None:
            raise OSError(f"NATS at {server.url} was not reached: {[error, *heard]!r}") from error
        return str(refusal)
    finally:
        drop_socket(client)
    raise RuntimeError(f"NATS at {server.url} takes everybody")


def main(arguments: list[str]) -> int:
    """The program."""
    ready, url, *ca = arguments
    with urllib.request.urlopen(ready, timeout=TIMEOUT_S) as answer:
        print(f"{ready}: {answer.status}")
    server = Server(url=url, ca=Path(ca[0]).read_bytes() if ca else None)
    print(f"{url}: {asyncio.run(greeted(server))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m rollfleet_operator`: the operator, configured by environment variables (see `settings`)."""

import asyncio
import gc
import logging
import os
import signal
import sys
from contextlib import suppress

try:
    from rollfleet_operator.api import login
    from rollfleet_operator.nats.server_port import NatsOnServers
    from rollfleet_operator.program import Operator
    from rollfleet_operator.settings import Settings, SettingsInvalid
except ModuleNotFoundError as error:
    sys.exit(f"the operator needs the package {error.name}, which is not installed: pip install 'rollfleet[operator]'")


async def run(operator: Operator) -> None:
    """Run the operator until a signal comes, also while it starts."""
    starting, ended = asyncio.create_task(operator.start()), asyncio.Event()

    def end() -> None:
        ended.set()  # a library may swallow the cancellation
        starting.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    with suppress(asyncio.CancelledError):
        await starting
        await ended.wait()
    await operator.stop()


def main() -> int:
    """Run until a signal comes; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # asyncio does not notice that nats-py has put its stream over TLS, and warns when the server closes it.
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received()" not in record.getMessage())
    try:
        settings = Settings.read(os.environ)
    except SettingsInvalid as error:
        print(error, file=sys.stderr)
        return 2
    gc.freeze()  # a collection stops the loop: it need not look at what was imported
    asyncio.run(run(Operator(settings, login, NatsOnServers)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

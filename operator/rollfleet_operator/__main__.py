"""`python -m rollfleet_operator`: the operator, configured by environment variables (see `settings`)."""

import gc
import logging
import os
import sys

try:
    import kopf

    from rollfleet_operator.api import login
    from rollfleet_operator.nats.server_port import NatsOnServers
    from rollfleet_operator.program import Operator
    from rollfleet_operator.settings import Settings, SettingsInvalid
except ModuleNotFoundError as error:
    sys.exit(f"the operator needs the package {error.name}, which is not installed: pip install 'rollfleet[operator]'")


def main() -> int:
    """Run until a signal comes; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it logs every event of every object
    # asyncio does not notice that nats-py has put its stream over TLS, and warns when the server closes it.
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received()" not in record.getMessage())
    try:
        settings = Settings.read(os.environ)
    except SettingsInvalid as error:
        print(error, file=sys.stderr)
        return 2
    gc.freeze()  # a collection stops the loop: it need not look at what was imported
    operator = Operator(settings, login, NatsOnServers)
    kopf.run(
        memo=operator,
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

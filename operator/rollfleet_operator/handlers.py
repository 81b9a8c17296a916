"""What kopf calls: start, login and stop. The operator watches objects itself (see `watch`)."""

from typing import Any

import kopf

from rollfleet_operator.program import Operator


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Configure kopf, and start."""
    settings.posting.enabled = False  # the operator writes its own events
    settings.scanning.disabled = True  # kopf watches nothing
    await memo.start()


@kopf.on.login()
def log_in(memo: Operator, **_: Any) -> kopf.ConnectionInfo:
    """Return the API server's address and credentials."""
    return memo.connect()


@kopf.on.cleanup()
async def stop(memo: Operator, **_: Any) -> None:
    """Stop."""
    await memo.stop()

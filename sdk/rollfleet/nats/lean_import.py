"""nats-py without what a worker does not need of it.

Where aiohttp is installed, nats-py imports it for WebSockets: 9 MB of memory and a tenth of a worker's start.
"""

import sys


def import_nats(url: str) -> None:
    """Import nats-py, without aiohttp unless one of these servers is reached through a WebSocket. Others may import it.

    Args:
        url: Of one or several servers, separated by commas.
    """
    if any(each.strip().startswith(("ws:", "wss:")) for each in url.split(",")) or "aiohttp" in sys.modules:
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # so Python says that it is not installed
    try:
        import nats  # noqa: F401
    finally:
        del sys.modules["aiohttp"]

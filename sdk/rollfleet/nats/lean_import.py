"""Imports nats-py without aiohttp, which a worker does not need.

nats-py imports aiohttp for WebSockets if it is installed: 9 MB of memory and a tenth of a worker's start.

It relies on nats-py (2.16) tolerating a failed `import aiohttp`, and on `sys.modules["aiohttp"] = None` making that
import fail. `tests/sdk/nats/test_client.py` runs it in a new process, and fails if aiohttp is loaded after all.
"""

import sys


def import_nats(url: str) -> None:
    """Import nats-py, without aiohttp unless a server is reached through a WebSocket. Other code may import aiohttp.

    Args:
        url: The URL of one server or several, separated by commas.
    """
    if any(each.strip().startswith(("ws:", "wss:")) for each in url.split(",")) or "aiohttp" in sys.modules:
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # Python then reports it as not installed
    try:
        import nats  # noqa: F401
    finally:
        del sys.modules["aiohttp"]

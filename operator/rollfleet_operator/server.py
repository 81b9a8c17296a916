"""Health and metrics over HTTP: `/healthz`, `/readyz`, `/metrics`."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from rollfleet_operator.metrics import Metrics

_TEXT = "text/plain"


class Server:
    """Listens on all addresses: the kubelet asks from outside the pod.

    Args:
        port: 0: a free one.
        metrics: What `/metrics` tells.
        alive: Whether the operator gets on with its work; else it is to be started anew.
        ready: Whether it has seen all jobs.
    """

    def __init__(self, port: int, metrics: Metrics, alive: Callable[[], bool], ready: Callable[[], bool]) -> None:
        self._port, self._metrics, self._alive, self._ready = port, metrics, alive, ready
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port, once it listens; a free one is another for IPv4 and for IPv6, and this is that of IPv4."""
        assert self._runner is not None
        return int(next(address[1] for address in self._runner.addresses if "." in address[0]))

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/healthz", self._probe(self._alive))
        app.router.add_get("/readyz", self._probe(self._ready))
        app.router.add_get("/metrics", self._exposition)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, None, self._port).start()

    async def stop(self) -> None:
        """Close the port."""
        if self._runner:
            await self._runner.cleanup()

    def _probe(self, holds: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(_: web.Request) -> web.StreamResponse:
            well = holds()
            return web.Response(status=200 if well else 503, text="ok" if well else "not ok")

        return answer

    async def _exposition(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._metrics.exposition(), content_type=_TEXT)

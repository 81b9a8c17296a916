"""Health and metrics over HTTP: `/healthz`, `/readyz`, `/metrics`."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from rollfleet_operator.metrics import Metrics

_TEXT = "text/plain"


class Server:
    """The HTTP server. It listens on all addresses, because the kubelet probes from outside the pod.

    Args:
        port: The port; 0: a free one.
        alive: Returns whether the operator makes progress; if not, the kubelet restarts it.
        ready: Returns whether the operator has listed all jobs.
    """

    def __init__(self, port: int, metrics: Metrics, alive: Callable[[], bool], ready: Callable[[], bool]) -> None:
        self._port, self._metrics, self._alive, self._ready = port, metrics, alive, ready
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port, after `start`. With port 0 it is that of IPv4; IPv6 has another."""
        assert self._runner is not None
        return int(next(address[1] for address in self._runner.addresses if "." in address[0]))

    async def start(self) -> None:
        """Start to listen."""
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
            healthy = holds()
            return web.Response(status=200 if healthy else 503, text="ok" if healthy else "not ok")

        return answer

    async def _exposition(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._metrics.exposition(), content_type=_TEXT)

"""Health and metrics over HTTP: `/healthz`, `/readyz`, `/metrics`."""

from collections.abc import Callable

from aiohttp import web

from rollfleet_operator.metrics import Metrics


def probes(metrics: Metrics, *, alive: Callable[[], bool], ready: Callable[[], bool]) -> web.Application:
    """Return the application.

    Args:
        metrics: The metrics to show.
        alive: Returns whether all tasks of the operator run; if not, the kubelet restarts it.
        ready: Returns whether the operator has listed all jobs.
    """

    async def health(request: web.Request) -> web.Response:
        healthy = {"/healthz": alive, "/readyz": ready}[request.path]()
        return web.Response(status=200 if healthy else 503, text="ok" if healthy else "not ok")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/healthz", health), web.get("/readyz", health), web.get("/metrics", exposition)])
    return app

"""The page over HTTP: its files, and the JSON under `/api/v1`. It only reads."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Final

from aiohttp import web
from pydantic import BaseModel
from pydantic_core import to_json

from rollfleet_ui.source import Guard, ShownJob, Source, Viewer

API: Final = "/api/v1"
FOLDER: Final = Path(__file__).parent / "static"
MAX_TAIL, DEFAULT_TAIL = 10_000, 200
MAX_LOG_CHARACTERS: Final = 1 << 20
MAX_CONNECTIONS: Final = 256
SILENT_S: Final = 10.0
"""A connection without a request for this long is closed."""
STOP_S: Final = 2.0
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Rollfleet-Version": version("rollfleet"),
}
_PARTS: Final[dict[str, Callable[[ShownJob], BaseModel | Sequence[BaseModel]]]] = {
    "": lambda job: job.page(),
    "/workers": lambda job: job.workers(),
    "/history": lambda job: job.history(),
    "/timeline": lambda job: job.timeline(),
}
"""What the API answers about a job, by the end of the path."""
_viewer: ContextVar[Viewer] = ContextVar("viewer")  # of the request of this task
_NOT_TEXT: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
"""What a terminal would obey: escape sequences, and control characters but for tabs and ends of lines."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def page(source: Source, guard: Guard) -> web.Application:
    """Return the page as an application of aiohttp.

    Args:
        source: The jobs to show.
        guard: Who may see them. Each request passes it.
    """
    return _Page(source, guard).app


@asynccontextmanager
async def served(app: web.Application, *, port: int, host: str | None = "127.0.0.1") -> AsyncIterator[int]:
    """Serve an application until the block ends. Its connections are bounded, in number and in time.

    Args:
        app: The application.
        port: The port; 0: a free one.
        host: The address to listen on. None: all.

    Yields:
        The port.

    Raises:
        OSError: The port is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S, keepalive_timeout=SILENT_S)
    door = _Door(runner)
    app.middlewares.insert(0, door.note)
    await runner.setup()
    try:
        try:
            server = await asyncio.get_running_loop().create_server(door, host, port)
        except OSError as error:
            cause = os.strerror(error.errno or 0).lower()  # asyncio's text has more in it, by its version
            raise OSError(error.errno, f"port {port}: {cause}; write another port, or 0 for a free one") from error
        try:
            first = min(server.sockets, key=lambda each: each.family)  # with port 0, IPv6 has another port than IPv4
            yield int(first.getsockname()[1])
        finally:
            server.close()
    finally:
        await runner.cleanup()


class _Door:
    """Makes the protocol of each connection, of as many as there may be, and closes those that send no request.

    One too many closes the oldest of those; if all have sent one, it is closed itself.
    """

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._unused: dict[web.RequestHandler, None] = {}  # the oldest first

    def __call__(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= MAX_CONNECTIONS:
            if not self._unused:
                return _Closed()
            self._close_unused(next(iter(self._unused)))
        handler = server()
        self._unused[handler] = None
        asyncio.get_running_loop().call_later(SILENT_S, self._close_unused, handler)
        return handler

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._unused.pop(request.protocol, None)
        return await handler(request)

    def _close_unused(self, handler: web.RequestHandler) -> None:
        if handler in self._unused and handler.transport:
            handler.transport.abort()
        self._unused.pop(handler, None)


class _Closed(asyncio.Protocol):
    """A connection that is refused."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Page:
    def __init__(self, source: Source, guard: Guard) -> None:
        self._source, self._guard = source, guard
        self.app = web.Application(middlewares=[self._admit])
        self.app.add_routes([web.get("/", self._index), web.static("/static", FOLDER)])
        self.app.router.add_get(f"{API}/jobs", self._jobs)
        job = f"{API}/jobs/{{namespace}}/{{name}}"
        for part, read in _PARTS.items():
            self.app.router.add_get(f"{job}{part}", self._part(read))
        self.app.router.add_get(f"{job}/logs", self._logs)
        self.app.on_response_prepare.append(_add_headers)

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _viewer.set(await self._guard.admit(request))
            return await _answered(handler, request)
        except web.HTTPException as error:
            if error.status >= 400 and request.path.startswith("/api/"):
                error.content_type = "application/json"
                error.text = json.dumps({"error": " ".join((error.text or error.reason).split())})
            raise

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(FOLDER / "index.html")

    async def _jobs(self, _: web.Request) -> web.StreamResponse:
        jobs = self._source.jobs()
        readable = await _viewer.get().readable({_namespace_of(key) for key in jobs})
        return _json([job.row for key, job in jobs.items() if _namespace_of(key) in readable])

    def _part(self, read: Callable[[ShownJob], BaseModel | Sequence[BaseModel]]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            _, job = await self._found(request)
            return _json(read(job))

        return handler

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        key, _ = await self._found(request)
        process = _process(request.query.get("worker", ""))
        previous = request.query.get("previous", "false")
        if previous not in ("true", "false"):
            raise web.HTTPBadRequest(text="`previous` is `true` or `false`")
        tail = request.query.get("tail", str(DEFAULT_TAIL))
        if not (tail.isascii() and tail.isdecimal() and len(tail) < 9 and 1 <= int(tail) <= MAX_TAIL):
            raise web.HTTPBadRequest(text=f"`tail` is a number of lines, 1 to {MAX_TAIL}")
        text = await self._source.logs(key, process, previous=previous == "true", tail=int(tail), viewer=_viewer.get())
        return _text(json.dumps({"text": _NOT_TEXT.sub("", text[-MAX_LOG_CHARACTERS:])}))

    async def _found(self, request: web.Request) -> tuple[str, ShownJob]:
        """Return the job that a request names, if the viewer may read it; else refuse, whether it exists or not."""
        key = f"{request.match_info['namespace']}/{request.match_info['name']}"
        namespace = request.match_info["namespace"]
        if namespace not in await _viewer.get().readable({namespace}):
            raise web.HTTPForbidden(text=f"you may not read the jobs of the namespace {namespace}")
        job = self._source.jobs().get(key)
        if job is None:
            raise web.HTTPNotFound(text=f"there is no job {key}")
        return key, job


async def _answered(handler: Handler, request: web.Request) -> web.StreamResponse:
    """Answer a request, with the errors of a source as answers."""
    try:
        return await handler(request)
    except PermissionError as error:
        raise web.HTTPForbidden(text=str(error)) from None
    except LookupError as error:
        raise web.HTTPNotFound(text=str(error.args[0] if error.args else "there is no such log")) from None
    except OSError as error:
        raise web.HTTPServiceUnavailable(text=f"it cannot be read now: {error}") from None


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store" if request.path.startswith("/api/") else "no-cache")


def _namespace_of(key: str) -> str:
    return key.partition("/")[0]


def _process(text: str) -> str:
    """Return the process that a request names."""
    if re.fullmatch(r"learner|evaluation worker [0-9]{1,6}", text):
        return text
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise web.HTTPBadRequest(text="`worker` is the index of a worker, `evaluation worker 0`, or `learner`")
    return f"worker {int(text)}"


def _json(found: BaseModel | Sequence[BaseModel]) -> web.Response:
    return _text(to_json(found, by_alias=True).decode())


def _text(text: str) -> web.Response:
    response = web.Response(text=text, content_type="application/json")
    response.enable_compression()
    return response

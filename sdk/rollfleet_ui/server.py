"""The page over HTTP: its files, and the JSON under `/api/v1`. It only reads."""

import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final

from aiohttp import web
from pydantic import BaseModel

from rollfleet_ui.changes import Changes, Rows
from rollfleet_ui.source import Guard, Source, Viewer
from rollfleet_ui.static_files import FOLDER, INDEX, StaticFiles

API: Final = "/api/v1"
MAX_TAIL, DEFAULT_TAIL = 10_000, 200
MAX_LOG_CHARACTERS: Final = 1 << 20
COMPRESSED_BYTES: Final = 4096
"""Answers of the API that are larger are compressed."""
STOP_S: Final = 2.0
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
_viewer: ContextVar[Viewer] = ContextVar("viewer")  # of the request of this task
_NOT_TEXT: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
"""What a terminal would obey: escape sequences, and control characters but for tabs and ends of lines."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def page(source: Source, guard: Guard) -> web.Application:
    """Return the page as an application of aiohttp.

    Args:
        source: The jobs to show.
        guard: Who may see them. Each request passes it.

    Example:
        >>> app = page(source, TokenGuard())  # doctest: +SKIP
        >>> async with served(app, port=0) as port:  # doctest: +SKIP
        ...     print(port)
    """
    return _Page(source, guard).app


@asynccontextmanager
async def served(app: web.Application, *, port: int, host: str | None = "127.0.0.1") -> AsyncIterator[int]:
    """Serve an application until the block ends.

    Args:
        app: The application.
        port: The port; 0: a free one.
        host: The address to listen on. None: all.

    Yields:
        The port.

    Raises:
        OSError: The port is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            cause = os.strerror(error.errno or 0).lower()  # asyncio's text has more in it, by its version
            raise OSError(error.errno, f"port {port}: {cause}; write another port, or 0 for a free one") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


class _Page:
    """The handlers of one application."""

    def __init__(self, source: Source, guard: Guard) -> None:
        self._source, self._guard = source, guard
        self._files = StaticFiles(FOLDER)
        self._rows = Rows(source)
        self._changes = Changes(source, self._rows)
        self.app = web.Application(middlewares=[self._admit])
        job = f"{API}/jobs/{{namespace}}/{{name}}"
        self.app.add_routes(
            [
                web.get("/", self._index),
                web.get("/static/{name:.+}", self._file),
                web.get(f"{API}/jobs", self._jobs),
                web.get(f"{API}/changes", self._stream, allow_head=False),
                web.get(job, self._of_job(self._job)),
                web.get(f"{job}/workers", self._of_job(self._workers)),
                web.get(f"{job}/history", self._of_job(self._history)),
                web.get(f"{job}/timeline", self._of_job(self._timeline)),
                web.get(f"{job}/logs", self._of_job(self._logs)),
            ]
        )
        self.app.on_response_prepare.append(_add_headers)
        self.app.on_shutdown.append(self._close)

    async def _close(self, _: web.Application) -> None:
        await self._changes.close()
        self._rows.close()

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _viewer.set(await self._guard.admit(request))
            return await handler(request)
        except web.HTTPException as error:
            if error.status >= 400 and request.path.startswith("/api/"):
                error.content_type = "application/json"
                error.text = json.dumps({"error": " ".join((error.text or error.reason).split())})
            raise

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._files.answer(request, INDEX)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._files.answer(request, request.match_info["name"])

    async def _jobs(self, _: web.Request) -> web.StreamResponse:
        return _json(await self._rows.list(_viewer.get()))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        only = request.query.get("job")
        if only is not None:
            await self._check(_viewer.get(), only)
        return await self._changes.stream(request, _viewer.get(), only)

    def _of_job(self, answer: Callable[[web.Request, str], Awaitable[web.StreamResponse]]) -> Handler:
        """Return a handler of requests about a job that the viewer may read."""

        async def handler(request: web.Request) -> web.StreamResponse:
            key = f"{request.match_info['namespace']}/{request.match_info['name']}"
            await self._check(_viewer.get(), key)
            return await answer(request, key)

        return handler

    async def _check(self, viewer: Viewer, key: str) -> None:
        """Refuse a job that the viewer may not read, whether it exists or not, and one that does not exist."""
        namespace, separator, name = key.partition("/")
        if not (namespace and separator and name):
            raise web.HTTPBadRequest(text=f"`job` is `{key[:100]}`; write `namespace/name`")
        if namespace not in await viewer.readable({namespace}):
            raise web.HTTPForbidden(text=f"you may not read the jobs of the namespace {namespace}")
        if self._source.row(key) is None:
            raise web.HTTPNotFound(text=f"there is no job {key}")

    async def _job(self, _: web.Request, key: str) -> web.StreamResponse:
        found = self._source.job(key)
        if found is None:
            raise web.HTTPNotFound(text=f"there is no job {key}")
        return _json(found.model_dump_json(by_alias=True))

    async def _workers(self, _: web.Request, key: str) -> web.StreamResponse:
        return _json(_list(self._source.workers(key)))

    async def _history(self, _: web.Request, key: str) -> web.StreamResponse:
        return _json(self._source.history(key).model_dump_json(by_alias=True))

    async def _timeline(self, _: web.Request, key: str) -> web.StreamResponse:
        return _json(_list(self._source.timeline(key)))

    async def _logs(self, request: web.Request, key: str) -> web.StreamResponse:
        worker = _worker(request.query.get("worker", ""))
        previous = request.query.get("previous", "false")
        if previous not in ("true", "false"):
            raise web.HTTPBadRequest(text="`previous` is `true` or `false`")
        tail = request.query.get("tail", str(DEFAULT_TAIL))
        if not (tail.isascii() and tail.isdecimal() and len(tail) < 9 and 1 <= int(tail) <= MAX_TAIL):
            raise web.HTTPBadRequest(text=f"`tail` is a number of lines, 1 to {MAX_TAIL}")
        try:
            text = await self._source.logs(
                key, worker, previous=previous == "true", tail=int(tail), viewer=_viewer.get()
            )
        except PermissionError as error:
            raise web.HTTPForbidden(text=str(error)) from None
        except LookupError as error:
            raise web.HTTPNotFound(text=str(error.args[0] if error.args else "there is no such log")) from None
        except OSError as error:
            raise web.HTTPServiceUnavailable(text=f"the log cannot be read now: {error}") from None
        return _json(json.dumps({"text": _NOT_TEXT.sub("", text[-MAX_LOG_CHARACTERS:])}))


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


def _worker(text: str) -> int | None:
    """Return the index of a worker. None: the learner."""
    if text == "learner":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise web.HTTPBadRequest(text="`worker` is the index of a worker, or `learner`")
    return int(text)


def _list(models: Sequence[BaseModel]) -> str:
    return f"[{','.join(each.model_dump_json(by_alias=True) for each in models)}]"


def _json(text: str) -> web.Response:
    response = web.Response(text=text, content_type="application/json")
    if len(text) > COMPRESSED_BYTES:
        response.enable_compression()
    return response

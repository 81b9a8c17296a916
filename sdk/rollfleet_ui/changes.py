"""The rows of all jobs as JSON, and a stream of those that change, for each browser at its own pace."""

import asyncio
import json
from collections.abc import Iterable
from importlib.metadata import version
from typing import Final

from aiohttp import web

from rollfleet_ui.source import Source, Viewer

EVERY_S: Final = 1.0
"""A browser gets at most one message in this time. What changes meanwhile is in the next one."""
COMMENT_S: Final = 15.0
"""A silent stream gets a comment this often: proxies close idle ones, and a browser that is gone is noticed."""
STALLED_S: Final = 60.0
"""A browser that reads nothing for this long is cut off."""
MAX_STREAMS: Final = 100


def namespace_of(key: str) -> str:
    """Return the namespace of a job's key."""
    return key.partition("/")[0]


class Rows:
    """The JSON of all rows, kept until they change: many browsers cost no more than one.

    Args:
        source: The jobs.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stale: set[str] = set()
        self._unsubscribe = source.subscribe(self._stale.add)
        self._json = {row.key: row.model_dump_json(by_alias=True) for row in source.jobs()}

    def close(self) -> None:
        """Follow the source no longer."""
        self._unsubscribe()

    async def list(self, viewer: Viewer) -> str:
        """Return the rows that a viewer may read, as a JSON list."""
        self._refresh()
        readable = await viewer.readable({namespace_of(key) for key in self._json})
        return f"[{','.join(row for key, row in self._json.items() if namespace_of(key) in readable)}]"

    async def changed(self, keys: Iterable[str], viewer: Viewer) -> str:
        """Return some rows that a viewer may read, as a JSON list. A row that is gone is `{"key", "gone": true}`."""
        self._refresh()
        keys = list(keys)
        readable = await viewer.readable({namespace_of(key) for key in keys})
        known = [key for key in keys if namespace_of(key) in readable]
        return f"[{','.join(self._json.get(key) or json.dumps({'key': key, 'gone': True}) for key in known)}]"

    def _refresh(self) -> None:
        while self._stale:
            key = self._stale.pop()
            if row := self._source.row(key):
                self._json[key] = row.model_dump_json(by_alias=True)
            else:
                self._json.pop(key, None)


class Changes:
    """The streams of changes of all browsers, as Server-Sent Events.

    Args:
        source: The jobs.
        rows: Their rows.
    """

    def __init__(self, source: Source, rows: Rows) -> None:
        self._source, self._rows = source, rows
        self._streams: set[asyncio.Task[object]] = set()

    async def stream(self, request: web.Request, viewer: Viewer, only: str | None) -> web.StreamResponse:
        """Send changes until the browser leaves.

        Args:
            request: The browser's request.
            viewer: Who reads.
            only: The key of the only job to report. None: all jobs.

        Raises:
            aiohttp.web.HTTPTooManyRequests: There are too many streams.
        """
        if len(self._streams) >= MAX_STREAMS:
            raise web.HTTPTooManyRequests(text=f"{MAX_STREAMS} browsers follow changes already; close some")
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        changed: set[str] = set()
        woken = asyncio.Event()

        def note(key: str) -> None:
            if only in (None, key):
                changed.add(key)
                woken.set()

        unsubscribe = self._source.subscribe(note)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        try:
            await response.prepare(request)
            await _send(response, _event("hello", json.dumps({"version": version("rollfleet"), "readOnly": True})))
            while True:
                try:
                    await asyncio.wait_for(woken.wait(), COMMENT_S)
                except TimeoutError:
                    await _send(response, ":\n\n")
                    continue
                woken.clear()
                keys, changed = changed, set()
                if (rows := await self._rows.changed(keys, viewer)) != "[]":
                    await _send(response, _event("jobs", rows))
                    await asyncio.sleep(EVERY_S)
        except (ConnectionError, TimeoutError):  # the browser is gone, or reads nothing
            if request.transport:
                request.transport.abort()
        finally:
            unsubscribe()
            self._streams.discard(task)
        return response

    async def close(self) -> None:
        """End all streams."""
        for task in self._streams:
            task.cancel()


def _event(kind: str, data: str) -> str:
    return f"event: {kind}\ndata: {data}\n\n"


async def _send(response: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(STALLED_S):
        await response.write(text.encode())

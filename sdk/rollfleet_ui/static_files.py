"""The files of the page, read and compressed once, and answered from memory."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_OTHER: Final = "text/plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file of the page."""

    body: bytes
    packed: bytes
    tag: str
    content_type: str


class StaticFiles:
    """The files of a folder.

    Args:
        folder: The folder; files that it gets later are not answered.

    Example:
        >>> files = StaticFiles(FOLDER)
        >>> answer = files.answer(request, "index.html")  # doctest: +SKIP
    """

    def __init__(self, folder: Path) -> None:
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in folder.rglob("*") if path.is_file()}

    def answer(self, request: web.Request, name: str) -> web.Response:
        """Answer with a file; without its content if the browser has it.

        Raises:
            aiohttp.web.HTTPNotFound: The file is missing.
        """
        file = self._files.get(name)
        if file is None:
            raise web.HTTPNotFound(text=f"there is no file {name}")
        headers = {"ETag": f'"{file.tag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if any(tag.value == file.tag for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        charset = "utf-8" if file.content_type.startswith("text/") else None
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return web.Response(body=file.packed, headers=headers, content_type=file.content_type, charset=charset)
        return web.Response(body=file.body, headers=headers, content_type=file.content_type, charset=charset)


def _read(path: Path) -> _File:
    body = path.read_bytes()
    return _File(
        body=body,
        packed=gzip.compress(body, mtime=0),
        tag=hashlib.sha256(body).hexdigest()[:16],
        content_type=_TYPES.get(path.suffix, _OTHER),
    )

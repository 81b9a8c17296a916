"""The guard of a page on this machine: a token in its URL, as Jupyter has it."""

import hmac
import re
import secrets
from collections.abc import Set
from typing import Final

from aiohttp import web

_HOST: Final = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::(\d{1,5}))?")


class Everything:
    """A viewer who may read all jobs.

    Attributes:
        token: They need none.
    """

    token: str | None = None

    async def readable(self, namespaces: Set[str]) -> Set[str]:
        """Return all of them."""
        return namespaces


class TokenGuard:
    """Admits browsers of this machine that know a token.

    The token comes in the URL once. It becomes a cookie, which scripts do not see and which other sites cannot use, and
    the browser is sent to the URL without it. Programs send it as `Authorization: Bearer TOKEN`. A name of another host
    or another origin is refused: a site that resolves to this machine cannot read the page.

    Example:
        >>> TokenGuard("secret").url(8080)
        'http://127.0.0.1:8080/?token=secret'

    Args:
        token: The token. Default: a new one.
    """

    def __init__(self, token: str = "") -> None:
        self._token = token or secrets.token_urlsafe(24)

    def url(self, port: int) -> str:
        """Return the URL to open in a browser."""
        return f"http://127.0.0.1:{port}/?token={self._token}"

    async def admit(self, request: web.Request) -> Everything:
        """Admit a request.

        Raises:
            aiohttp.web.HTTPUnauthorized: It has no valid token.
            aiohttp.web.HTTPForbidden: Its Host or Origin is not this machine.
            aiohttp.web.HTTPFound: It has the token in its URL: the browser repeats it with a cookie.
        """
        host = _HOST.fullmatch(request.host)
        if host is None:
            raise web.HTTPForbidden(text="open this page as http://127.0.0.1, not by another name")
        if request.headers.get("Origin", f"http://{request.host}") != f"http://{request.host}":
            raise web.HTTPForbidden(text="another site may not use this page")
        cookie = f"rollfleet-{host[1] or 80}"  # browsers share cookies between the ports of a host
        if (given := request.query.get("token")) is not None:
            if not self._is_valid(given):
                raise web.HTTPUnauthorized(text="the token of this URL is wrong: the program was started again")
            found = web.HTTPFound("/")
            found.set_cookie(cookie, given, httponly=True, samesite="Strict", path="/")
            raise found
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not (self._is_valid(request.cookies.get(cookie, "")) or self._is_valid(bearer)):
            raise web.HTTPUnauthorized(text="open the URL with the token, which the program has printed")
        return Everything()

    def _is_valid(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(errors="replace"), self._token.encode())

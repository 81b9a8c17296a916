"""The operator's requests to the API server. It does not retry: callers decide when to try again."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, Self

import aiohttp
import kopf

from rollfleet_api.kinds import KINDS
from rollfleet_api.kubernetes_names import MANAGER
from rollfleet_operator import deep_json
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest

TIMEOUT_S: Final = 15.0
CONNECTIONS: Final = 32
LOGIN_S: Final = 60.0
"""The seconds for which credentials are used: a token's file is replaced minutes before the token expires."""

WATCH_S: Final = 240
"""The length of a watch: the next one continues where it ends."""

SILENT_S: Final = 90.0
"""A watch that carries nothing for this long has lost its connection: a bookmark comes each minute."""

LOG_BYTES: Final = 1 << 20
"""The most bytes of a log, its last ones."""

MESSAGE_CHARACTERS: Final = 4096
"""The most characters kept of a refusal, which may repeat the refused object with its megabytes."""

_PAGE: Final = 100
"""Objects in one answer: the loop stands still while it is decoded."""

_JSON: Final = "application/json"

Listing = tuple[list[Manifest], str]
"""A part of a list of objects, and the list's version."""


class Api:
    """A client of the API server.

    Args:
        login: Returns the server's address and credentials. It is called again each `LOGIN_S`.
        verify: Called before each write; it must not return if this operator may not write.
    """

    def __init__(self, login: Callable[[], kopf.ConnectionInfo], verify: Callable[[], None] = lambda: None) -> None:
        self._login, self._verify = login, verify
        self._info, self._login_s = login(), time.monotonic()
        self._session = self._connect()

    def _connect(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._info.as_ssl_context(), limit=CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),  # viewers share connections, and nothing else
        )

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self.close()

    async def close(self) -> None:
        """Disconnect. No other method may be called afterwards."""
        await self._session.close()

    async def get(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """Return an object; None: it does not exist. `namespace` None: objects of its kind have none."""
        try:
            return await self._request("GET", KINDS[kind].path(namespace, name))
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def list(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Manifest]:
        """List the objects that match the selectors; see `pages`."""
        pages = self.pages(kind, namespace, labels=labels, fields=fields)
        return [item async for items, _ in pages for item in items]

    async def pages(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Listing]:
        """List objects in parts, so that not all of them are in memory at a time; namespace None: all of them."""
        query = {"limit": str(_PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            page = await self._request("GET", KINDS[kind].path(namespace), query=query)
            metadata = page["metadata"]
            items = [{"apiVersion": KINDS[kind].api_version, "kind": kind, **item} for item in page.pop("items")]
            yield items, metadata["resourceVersion"]
            del items
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def watch(
        self, kind: str, namespace: str | None, resource_version: str, *, labels: str = ""
    ) -> AsyncGenerator[Manifest, None]:
        """Yield the changes of objects after a version, as the API server's events, until it ends the watch.

        Raises:
            ApiError: The API server refused, or did not send to the end.
        """
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
        query |= {"resourceVersion": resource_version, "labelSelector": labels}
        timeout, rest = aiohttp.ClientTimeout(sock_connect=TIMEOUT_S, sock_read=SILENT_S), b""
        # A session of its own: a watch holds its connection, which requests wait for.
        async with (
            self._connect() as session,
            self._response(session, "GET", KINDS[kind].path(namespace), params=query, timeout=timeout) as response,
        ):
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield deep_json.loads(line)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object with a generated name; without `metadata.namespace`: one of the whole cluster."""
        path = KINDS[manifest["kind"]].path(manifest["metadata"].get("namespace"))
        return await self._request("POST", path, body=manifest)

    async def review(self, review: Manifest, token: str) -> Manifest:
        """Create a review as the user of a token; return its status."""
        path = KINDS[review["kind"]].path(None)
        async with self._response(self._session, "POST", path, json=review, token=token) as response:
            answer = await response.json(content_type=None, loads=deep_json.loads)
        status: Manifest = answer["status"]
        return status

    async def log(self, namespace: str, pod: str, token: str, *, container: str, tail: int) -> str:
        """Return the last lines of a pod's log, as the user of a token; `container` empty: of its only container."""
        query, end = {"tailLines": str(tail)} | ({"container": container} if container else {}), bytearray()
        path = KINDS["Pod"].path(namespace, pod, "log")
        async with self._response(self._session, "GET", path, params=query, token=token) as response:
            async for data in response.content.iter_any():
                end += data
                del end[:-LOG_BYTES]
        return end.decode(errors="replace")

    async def apply(self, manifest: Manifest, subresource: str = "") -> Manifest:
        """Create or update an object by server-side apply. Fields of other managers stay."""
        metadata = manifest["metadata"]
        path = KINDS[manifest["kind"]].path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._request(
            "PATCH", path, query=query, body=manifest, content_type="application/apply-patch+yaml"
        )

    async def patch(self, kind: str, namespace: str, name: str, patch: Manifest, subresource: str = "") -> Manifest:
        """Change fields of an object, or of its subresource, by a JSON merge patch."""
        path = KINDS[kind].path(namespace, name, subresource)
        query = {"fieldManager": MANAGER}
        return await self._request("PATCH", path, query=query, body=patch, content_type="application/merge-patch+json")

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete an object, and then its children. Ignores a missing object, or another one of its name."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._request("DELETE", KINDS[kind].path(namespace, name), body=body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
    ) -> Manifest:
        if method != "GET":
            self._verify()
        sent: Manifest = {"params": {key: value for key, value in (query or {}).items() if value}, "json": body}
        async with self._response(self._session, method, path, content_type=content_type, **sent) as response:
            answer: Manifest = await response.json(content_type=None, loads=deep_json.loads)
            return answer

    @asynccontextmanager
    async def _response(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        *,
        content_type: str = _JSON,
        token: str = "",
        **sent: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request. A `token` replaces this client's credentials."""
        if time.monotonic() - self._login_s > LOGIN_S:
            try:
                self._info, self._login_s = self._login(), time.monotonic()
            except OSError as error:
                raise ApiError(0, "NoCredentials", f"the credentials cannot be read: {error}") from error
        url = self._info.server.rstrip("/") + path
        login = {"Authorization": f"Bearer {token}"} if token else self._info.as_http_headers()
        headers = {**login, "Accept": _JSON, "Content-Type": content_type}
        try:
            async with session.request(method, url, headers=headers, **sent) as response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.text(errors="replace"))
                yield response
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            cause = str(error) or type(error).__name__
            raise ApiError(0, "Unreachable", f"the API server did not answer: {cause}") from error


def _refusal(status: int, text: str) -> ApiError:
    try:
        answer = deep_json.loads(text)
    except ValueError:  # of a proxy; the API server's "Too many requests" is plain text, too
        answer = None
    found = answer if isinstance(answer, dict) else {}
    message = str(found.get("message", text))
    return ApiError(status, found.get("reason", ""), message[:MESSAGE_CHARACTERS])


def login() -> kopf.ConnectionInfo:
    """Return the API server's address and credentials. It reads the files each time: tokens are rotated.

    Raises:
        ApiError: Neither a ServiceAccount nor a kubeconfig was found.
    """
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise ApiError(0, "NoCredentials", "neither a ServiceAccount nor a kubeconfig was found; set KUBECONFIG")
    return found


def without_credentials(found: kopf.ConnectionInfo) -> kopf.ConnectionInfo:
    """Return the address of the API server alone, for requests with the token of a viewer."""
    return kopf.ConnectionInfo(
        server=found.server, ca_path=found.ca_path, ca_data=found.ca_data, insecure=found.insecure
    )

"""The operator's requests to the API server. It does not retry: callers decide when to try again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp
import kopf

from rollfleet_operator.errors import ApiError
from rollfleet_operator.kinds import KINDS
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.names import FIELD_MANAGER

TIMEOUT_S: Final = 15.0
CONNECTIONS: Final = 32
_PAGE: Final = 500
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of objects, and its version."""

    items: list[Manifest]
    resource_version: str


class Api:
    """A client of the API server.

    Args:
        login: Returns the server's address and credentials. It is called again when the credentials have expired.

    Example:
        >>> async with Api(login) as api:
        ...     await api.get("Pod", "default", "cartpole-0")
    """

    def __init__(self, login: Callable[[], kopf.ConnectionInfo]) -> None:
        self._login = login
        self._info = login()
        self._session = self._connect()

    def _connect(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._info.as_ssl_context(), limit=CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
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

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object; None: it does not exist."""
        try:
            return await self._request("GET", KINDS[kind].path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Listing:
        """List the objects that match the selectors; `namespace` None: in all namespaces."""
        items: list[Manifest] = []
        query = {"limit": str(_PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            page = await self._request("GET", KINDS[kind].path(namespace), query=query)
            items += ({"apiVersion": KINDS[kind].api_version, "kind": kind, **item} for item in page["items"])
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return Listing(items, metadata["resourceVersion"])
            query = {**query, "continue": metadata["continue"]}

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object with a generated name."""
        path = KINDS[manifest["kind"]].path(manifest["metadata"]["namespace"])
        return await self._request("POST", path, body=manifest)

    async def apply(self, manifest: Manifest, subresource: str = "") -> Manifest:
        """Create or update an object by server-side apply. Fields of other managers stay."""
        metadata = manifest["metadata"]
        path = KINDS[manifest["kind"]].path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request(
            "PATCH", path, query=query, body=manifest, content_type="application/apply-patch+yaml"
        )

    async def patch(self, kind: str, namespace: str, name: str, patch: Manifest, subresource: str = "") -> Manifest:
        """Change fields of an object, or of its subresource, by a JSON merge patch."""
        path = KINDS[kind].path(namespace, name, subresource)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, query=query, body=patch, content_type="application/merge-patch+json")

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete an object, and then its children. A missing object, or another one of its name, is no error."""
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
        fresh: bool = False,
    ) -> Manifest:
        parameters = {key: value for key, value in (query or {}).items() if value}
        headers = {**self._info.as_http_headers(), "Accept": _JSON, "Content-Type": content_type}
        url = self._info.server.rstrip("/") + path
        try:
            async with self._session.request(method, url, params=parameters, json=body, headers=headers) as response:
                answer: Any = await response.json(content_type=None)
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise ApiError(
                0, "Unreachable", f"the API server did not answer: {error or type(error).__name__}"
            ) from error
        if response.status == 401 and not fresh:
            await self._log_in_again()
            return await self._request(method, path, query=query, body=body, content_type=content_type, fresh=True)
        if response.status >= 400:
            status = answer if isinstance(answer, dict) else {}
            raise ApiError(response.status, status.get("reason", ""), status.get("message", str(answer)))
        manifest: Manifest = answer
        return manifest

    async def _log_in_again(self) -> None:
        info = self._login()
        if info != self._info:
            old, self._info = self._session, info
            self._session = self._connect()
            await old.close()

"""The operator's page on a port of this machine, with the user's own token on each request."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web

from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.tunnel import Tunnel
from rollfleet.errors import ClusterError
from rollfleet_api.kubernetes_names import OPERATORS
from rollfleet_ui.source import Guard

log = logging.getLogger(__name__)

PORT: Final = 8081
"""The port of the page in the operator's pods."""

ROLE: Final = "rollfleet-ui"
SILENT_S: Final = 60.0
"""A stream of changes has a comment every 15 s."""

_SENT: Final = ("Accept", "Accept-Encoding", "If-None-Match", "Last-Event-ID")
_HOP_BY_HOP: Final = ("connection", "date", "keep-alive", "server", "transfer-encoding")


def bearer(api: ClusterApi, token: str | None = None) -> Callable[[], str]:
    """Return how to get the `Authorization` of a kubeconfig's user, renewed when it has expired.

    Args:
        api: The client of the cluster.
        token: A token instead of the kubeconfig's.

    Raises:
        ClusterError: The kubeconfig has no token: the operator cannot check a certificate.
    """

    def get() -> str:
        if token:
            return f"Bearer {token}"
        found = api.client.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if not found:
            raise ClusterError(
                "your kubeconfig has a certificate but no token, and the operator can only check a token: pass "
                '--token "$(kubectl create token NAME)" with the name of a ServiceAccount that may list CollectorJobs',
                0,
                "NoToken",
            )
        return str(found)

    get()
    return get


@dataclass(frozen=True, slots=True)
class _Way:
    """A tunnel to a pod."""

    pod: str
    tunnel: Tunnel


class OperatorPort:
    """The page's port of the operator that leads. Only that one listens; another pod may lead later.

    Args:
        api: The client of the cluster.
        namespace: The namespace of the operator.

    Example:
        >>> async with OperatorPort(ClusterApi(), "rollfleet") as port:  # doctest: +SKIP
        ...     answer = await port.get("/api/v1/jobs", {"Authorization": "Bearer ..."})
    """

    def __init__(self, api: ClusterApi, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._way: _Way | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> "OperatorPort":
        """Return itself."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENT_S)
        skipped = ("Accept-Encoding", "User-Agent")  # the browser decides
        self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False, skip_auto_headers=skipped)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._session.close()
        if self._way:
            self._way.tunnel.close()

    async def get(self, path: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Send a request, to one pod after the other until one answers.

        Raises:
            ClusterError: No pod answers, or the user may not reach them.
        """
        tried: set[str] = set()
        while True:
            known = self._way
            way = await self._open(tried)
            try:
                return await self._session.get(
                    f"http://127.0.0.1:{way.tunnel.port}{path}", headers=headers, allow_redirects=False
                )
            except (aiohttp.ClientError, TimeoutError) as error:
                log.debug("the page of %s did not answer: %r", way.pod, error)
                if way is not known:
                    tried.add(way.pod)
                if self._way is way:
                    self._way = None
                way.tunnel.close()

    async def _open(self, tried: set[str]) -> _Way:
        """Return the open tunnel, or a new one to a pod that was not tried."""
        async with self._opening:
            while self._way is None:
                pods = [pod for pod in await asyncio.to_thread(self._pods) if pod not in tried]
                if not pods:
                    raise ClusterError(
                        f"no operator in namespace {self._namespace} serves the page: see `kubectl --namespace "
                        f"{self._namespace} get pods`, set the chart's `ui.enabled=true`, or name its namespace",
                        0,
                        "NoPage",
                    )
                try:
                    tunnel = await asyncio.to_thread(Tunnel, self._api, self._namespace, pods[:1], PORT)
                except ClusterError as error:
                    if error.reason == "Forbidden":
                        raise _forbidden(self._namespace) from error
                    tried.add(pods[0])
                    continue
                self._way = _Way(pods[0], tunnel)
            return self._way

    def _pods(self) -> list[str]:
        """Return the pods that run, the newest first."""
        try:
            found = self._api.list("Pod", self._namespace, labels=OPERATORS).items
        except ClusterError as error:
            raise _forbidden(self._namespace) if error.status == 403 else error from error
        alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        running = [pod["metadata"] for pod in alive if pod.get("status", {}).get("phase") == "Running"]
        return [each["name"] for each in sorted(running, key=lambda each: each["creationTimestamp"], reverse=True)]


def proxy(port: OperatorPort, guard: Guard, authorization: Callable[[], str]) -> web.Application:
    """Return an application that answers with the operator's page.

    Args:
        port: The operator's port.
        guard: Who may use it on this machine.
        authorization: Returns the user's `Authorization`; see `bearer`.
    """

    async def forward(request: web.Request) -> web.StreamResponse:
        await guard.admit(request)
        try:
            headers = {name: request.headers[name] for name in _SENT if name in request.headers}
            headers["Authorization"] = await asyncio.to_thread(authorization)
            answer = await port.get(request.raw_path, headers)
        except ClusterError as error:
            text = json.dumps({"error": str(error)})
            raise web.HTTPBadGateway(text=text, content_type="application/json") from error
        async with answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for data in _read(answer):
                await response.write(data)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", forward, allow_head=False)
    return app


async def _read(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the content until its end, or until the operator is gone: the browser then asks again."""
    try:
        async for data in answer.content.iter_any():
            yield data
    except (aiohttp.ClientError, TimeoutError) as error:
        log.debug("the operator ended a stream: %r", error)


def _forbidden(namespace: str) -> ClusterError:
    message = f"you may not reach the operator: ask the cluster's administrators for the Role {ROLE} in {namespace}"
    return ClusterError(message, 403, "Forbidden")

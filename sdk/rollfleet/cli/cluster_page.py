"""`kubectl rollfleet ui`: the operator's page on this machine, with the user's own token on each request."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.tunnel import Tunnel
from rollfleet.errors import ClusterError
from rollfleet_api.kubernetes_names import OPERATORS
from rollfleet_ui.server import served
from rollfleet_ui.source import Guard
from rollfleet_ui.token_guard import TokenGuard

log = logging.getLogger(__name__)

NAMESPACE: Final = "rollfleet"
"""The namespace of an installation as the docs make it."""
PORT: Final = 8081
"""The port of the page in the operator's pods."""
ROLE: Final = "rollfleet-ui"
TIMEOUT: Final = aiohttp.ClientTimeout(total=60, sock_connect=10)

_SENT: Final = ("Accept", "Accept-Encoding", "If-None-Match")
_NOT_FORWARDED: Final = ("connection", "content-length", "date", "keep-alive", "server", "transfer-encoding")


async def show_cluster(
    show: Callable[[str], None],
    *,
    namespace: str | None,
    port: int,
    token: str | None,
    context: str | None,
    kubeconfig: Path | None,
) -> int:
    """Serve the operator's page on this machine until cancelled. `show` takes the line with its URL.

    Port 0 is a free one.

    Raises:
        ClusterError: The operator cannot be reached, or does not accept the user.
        OSError: The port is taken.
    """
    api, guard = ClusterApi(context=context, kubeconfig=kubeconfig), TokenGuard()
    authorization = bearer(api, token)
    async with OperatorPort(api, namespace or NAMESPACE) as operator:
        answer = await operator.get("/api/v1/jobs", {"Authorization": authorization()})
        if answer.status != 200:
            found = json.loads(answer.text or "{}") if answer.content_type == "application/json" else {}
            reason = f"the operator shows no page (HTTP {answer.status}): {found.get('error', '')}"
            raise ClusterError(reason, answer.status, "NoPage")
        async with served(proxy(operator, guard, authorization), port=port) as chosen:
            show(f"page of {api.client.configuration.host}: {guard.url(chosen)}")
            await asyncio.Event().wait()
    return 0


def bearer(api: ClusterApi, token: str | None = None) -> Callable[[], str]:
    """Return how to get the `Authorization` of a kubeconfig's user, renewed when it has expired; or that of `token`.

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


class OperatorPort:
    """The page's port of the operator that leads. Only that one listens; another pod may lead later."""

    def __init__(self, api: ClusterApi, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._tunnel: Tunnel | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> "OperatorPort":
        skipped = ("Accept-Encoding", "User-Agent")  # the browser decides
        self._session = aiohttp.ClientSession(timeout=TIMEOUT, auto_decompress=False, skip_auto_headers=skipped)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        if self._tunnel:
            self._tunnel.close()

    async def get(self, path: str, headers: Mapping[str, str]) -> web.Response:
        """Send a request, to one pod after the other until one answers.

        Raises:
            ClusterError: No pod answers, or the user may not reach them.
        """
        if answer := await self._ask(path, headers):
            return answer
        async with self._opening:
            if answer := await self._ask(path, headers):  # another request has opened a tunnel meanwhile
                return answer
            for pod in await asyncio.to_thread(self._pods):
                if self._tunnel:
                    self._tunnel.close()
                    self._tunnel = None  # its port may become another program's
                try:
                    self._tunnel = await asyncio.to_thread(
                        Tunnel, self._api, self._namespace, partial(list, [pod]), PORT
                    )
                except ClusterError as error:
                    if error.reason == "Forbidden":
                        raise _forbidden(self._namespace) from error
                    continue
                if answer := await self._ask(path, headers):
                    return answer
        message = (
            f"no operator in namespace {self._namespace} serves the page: see `kubectl --namespace {self._namespace} "
            "get pods`, set the chart's `ui.enabled=true`, or name its namespace"
        )
        raise ClusterError(message, 0, "NoPage")

    async def _ask(self, path: str, headers: Mapping[str, str]) -> web.Response | None:
        """Return the answer of the pod at the tunnel's end; None: it does not answer."""
        if self._tunnel is None:
            return None
        url = f"http://127.0.0.1:{self._tunnel.port}{path}"
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
                kept = {name: text for name, text in answer.headers.items() if name.lower() not in _NOT_FORWARDED}
                return web.Response(status=answer.status, headers=kept, body=await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("the page did not answer: %r", error)
            return None

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
    """Return an application that answers with the operator's page, to those whom `guard` admits on this machine."""

    async def forward(request: web.Request) -> web.StreamResponse:
        await guard.admit(request)
        try:
            headers = {name: request.headers[name] for name in _SENT if name in request.headers}
            headers["Authorization"] = await asyncio.to_thread(authorization)
            return await port.get(request.raw_path, headers)
        except ClusterError as error:
            text = json.dumps({"error": str(error)})
            raise web.HTTPBadGateway(text=text, content_type="application/json") from error

    app = web.Application()
    app.router.add_get("/{path:.*}", forward, allow_head=False)
    return app


def _forbidden(namespace: str) -> ClusterError:
    message = f"you may not reach the operator: ask the cluster's administrators for the Role {ROLE} in {namespace}"
    return ClusterError(message, 403, "Forbidden")

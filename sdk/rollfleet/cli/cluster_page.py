"""The operator's page in a browser of this machine: `kubectl rollfleet ui`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.page_proxy import OperatorPort, bearer, proxy
from rollfleet.errors import ClusterError
from rollfleet_ui.server import served
from rollfleet_ui.token_guard import TokenGuard

NAMESPACE: Final = "rollfleet"
"""The namespace of an installation as the docs make it."""


async def show_cluster(
    show: Callable[[str], None],
    *,
    namespace: str | None,
    port: int,
    token: str | None,
    context: str | None,
    kubeconfig: Path | None,
) -> int:
    """Serve the operator's page on this machine until cancelled.

    Args:
        show: Takes the line with the URL.
        namespace: The namespace of the operator. None: `NAMESPACE`.
        port: The port of the page; 0: a free one.
        token: The bearer token for the operator. None: that of the kubeconfig's user.
        context: The kubeconfig's context. None: the current one.
        kubeconfig: The file. None: `KUBECONFIG`, or `~/.kube/config`.

    Raises:
        ClusterError: The operator cannot be reached, or does not accept the user.
        OSError: The port is taken.
    """
    api, guard = ClusterApi(context=context, kubeconfig=kubeconfig), TokenGuard()
    authorization = bearer(api, token)
    async with OperatorPort(api, namespace or NAMESPACE) as operator:
        async with await operator.get("/api/v1/jobs", {"Authorization": authorization()}) as answer:
            if answer.status != 200:
                found = await answer.json() if answer.content_type == "application/json" else {}
                reason = f"the operator shows no page (HTTP {answer.status}): {found.get('error', '')}"
                raise ClusterError(reason, answer.status, "NoPage")
        async with served(proxy(operator, guard, authorization), port=port) as chosen:
            show(f"page of {api.client.configuration.host}: {guard.url(chosen)}")
            await asyncio.Event().wait()
    return 0

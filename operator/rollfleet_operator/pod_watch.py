"""The watch of pods. There may be many thousands of them: kopf would spend a task and several copies on each change."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

from rollfleet_operator import names
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 30.0


class PodWatch:
    """The pods of a namespace, kept in the cache: a list, and from its version on all changes, in their order.

    No deletion is missed, so that the list is repeated only when the API server has forgotten the changes since then.

    Args:
        api: The API server.
        cache: Gets the pods.
        namespace: The namespace; None: all namespaces.
        changed: Called with the job of each change.

    Example:
        >>> watch = PodWatch(api, cache, "default", queue.add)
        >>> await watch.list()
        >>> await watch.follow()
    """

    def __init__(self, api: Api, cache: Cache, namespace: str | None, changed: Callable[[JobKey], None]) -> None:
        self._api, self._cache, self._namespace, self._changed = api, cache, namespace, changed
        self._version = ""  # empty: they must be listed

    async def list(self) -> None:
        """Replace all pods in the cache.

        Raises:
            ApiError: The API server refused.
        """
        listed: set[str] = set()
        version, changed = "", set[JobKey]()
        async for page in self._api.pages("Pod", self._namespace, labels=names.SELECTOR):
            changed |= self._cache.add(page.items, listed)
            version = page.resource_version
        changed |= self._cache.keep_only("Pod", listed, version, self._namespace)
        self._version = version
        for key in changed:
            self._changed(key)

    async def follow(self) -> None:
        """Take in all changes, for ever."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                if not self._version:
                    await self.list()
                await self._watch()
                retry_s = FIRST_RETRY_S
            except ApiError as error:
                if error.status == HTTPStatus.GONE:  # the API server keeps changes for some minutes
                    self._version = ""
                else:
                    log.warning("watching pods in %s: %s; retry in %.1f s", self._namespace or "all", error, retry_s)
            except Exception:
                log.exception("watching pods in %s: error in the operator", self._namespace or "all namespaces")
                self._version = ""
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _watch(self) -> None:
        async with aclosing(self._api.watch("Pod", self._namespace, self._version, labels=names.SELECTOR)) as changes:
            async for change in changes:
                self._take_in(change["type"], change["object"])

    def _take_in(self, kind: str, pod: Manifest) -> None:
        if kind == "ERROR":
            raise ApiError(pod.get("code", 0), pod.get("reason", ""), pod.get("message", ""))
        self._version = pod["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        key = self._cache.remove(pod) if kind == "DELETED" else self._cache.put(pod)
        if key is not None:
            self._changed(key)

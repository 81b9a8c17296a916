"""The operator's one watch of the cluster: all objects of a kind, listed once, then each change in its order."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

from rollfleet_api.job import KIND
from rollfleet_operator import names
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 10.0


class Watch:
    """The objects of a kind in a namespace, kept in the cache.

    No deletion is missed, so that the list is repeated only when the API server has forgotten the changes since then.

    Args:
        api: The API server.
        cache: Gets the objects.
        kind: The kind: `CollectorJob`, or one of its children.
        namespace: The namespace; None: all namespaces.
        changed: Called with the kind and the job of each change, and with all jobs of the namespace after a list.

    Attributes:
        namespace: As above.
        listed: Whether the cache has all objects.
        refused: Whether the API server refuses the list.
    """

    def __init__(
        self, api: Api, cache: Cache, kind: str, namespace: str | None, changed: Callable[[str, JobKey], None]
    ) -> None:
        self._api, self._cache, self._kind, self.namespace = api, cache, kind, namespace
        self._changed, self._labels = changed, "" if kind == KIND else names.SELECTOR
        self.listed = self.refused = False
        self._version = ""  # empty: they must be listed

    async def _list(self) -> None:
        """Replace all objects in the cache."""
        listed, changed, version = set[str](), set[JobKey](), ""
        try:
            async for items, listed_at in self._api.pages(self._kind, self.namespace, labels=self._labels):
                listed |= {manifest["metadata"]["uid"] for manifest in items}
                changed |= {key for manifest in items if (key := self._cache.put(manifest)) is not None}
                version = listed_at
            changed |= self._cache.keep_only(self._kind, listed, version, self.namespace)
            changed |= {key for key in self._cache.jobs() if self.namespace in (None, key.namespace)}
            self._version, self.listed, self.refused = version, True, False
        finally:
            for key in changed:
                self._changed(self._kind, key)

    async def follow(self) -> None:
        """List all objects, then take in all changes, for ever. One that fails holds up no other: see `refused`."""
        retry_s, where, problem = FIRST_RETRY_S, f"{self._kind} in {self.namespace or 'all namespaces'}", ""
        while True:
            began_s, resumes = time.monotonic(), bool(self._version)
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                retry_s, problem = FIRST_RETRY_S, ""
            except ApiError as error:
                if error.status in (HTTPStatus.GONE, HTTPStatus.FORBIDDEN):  # changes are kept for some minutes
                    self._version = ""
                if error.status != HTTPStatus.GONE or not resumes:
                    self.refused = error.status == HTTPStatus.FORBIDDEN
                    if str(error) != problem or time.monotonic() - began_s > 2 * LAST_RETRY_S:
                        log.warning("watching each %s: %s; retrying", where, error)
                    problem = str(error)
            except Exception:
                log.exception("watching each %s: error in the operator", where)
                self._version = ""
            await asyncio.sleep(retry_s)
            lasted_s = time.monotonic() - began_s
            retry_s = FIRST_RETRY_S if lasted_s > 2 * LAST_RETRY_S else min(2 * retry_s, LAST_RETRY_S)

    async def _watch(self) -> None:
        changes = self._api.watch(self._kind, self.namespace, self._version, labels=self._labels)
        async with aclosing(changes):
            async for change in changes:
                self._take_in(change["type"], change["object"])

    def _take_in(self, kind: str, manifest: Manifest) -> None:
        if kind == "ERROR":
            raise ApiError(manifest.get("code", 0), manifest.get("reason", ""), manifest.get("message", ""))
        self._version = manifest["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        key = self._cache.remove(manifest) if kind == "DELETED" else self._cache.put(manifest)
        if key is not None:
            self._changed(self._kind, key)

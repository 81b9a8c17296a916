"""Who may see what: the API server checks each viewer's own token, and the viewer's rights on CollectorJobs."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Set
from typing import Any, Final, TypeVar

from aiohttp import web

from rollfleet_api.job import API_VERSION
from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest

VALID_S: Final = 30.0
"""Seconds for which an answer of the API server holds: a withdrawn right ends after this long, on open pages too."""

MOST: Final = 4096
"""The most remembered answers."""

AT_ONCE: Final = 8
"""The most questions to the API server at a time."""

_GROUP: Final = API_VERSION.partition("/")[0]
V = TypeVar("V")


class ReviewGuard:
    """Admits requests with a bearer token that the API server accepts.

    Args:
        api: The API server, over connections of its own. The operator may create TokenReviews and
            SubjectAccessReviews there.
        clock: Returns seconds.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._clock, self._limit = api, clock, asyncio.Semaphore(AT_ONCE)
        self._answers: dict[object, tuple[float, Any]] = {}  # when each question was asked, the newest last

    async def admit(self, request: web.Request) -> "ReviewedViewer":
        """Return the viewer of a request.

        Raises:
            web.HTTPUnauthorized: The request has no token, or the API server does not accept it.
            web.HTTPServiceUnavailable: The API server does not answer the operator.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise web.HTTPUnauthorized(text="no bearer token: open the page by `kubectl rollfleet ui`")
        viewer = ReviewedViewer(self, token.strip())
        if await viewer.user() is None:
            raise web.HTTPUnauthorized(text="the cluster does not accept your token: log in again")
        return viewer

    async def user(self, token: str) -> Manifest | None:
        """Return the user of a token, as the API server describes it; None: the token is not valid."""

        async def ask() -> Manifest | None:
            status = await self._review("authentication.k8s.io/v1", "TokenReview", {"token": token})
            return status["user"] if status.get("authenticated") else None

        return await self._kept(hashlib.sha256(token.encode()).digest(), ask)

    async def may_list(self, user: Manifest, namespace: str) -> bool:
        """Return whether a user may list the CollectorJobs of a namespace; empty: of all."""

        async def ask() -> bool:
            about = {"namespace": namespace, "verb": "list", "group": _GROUP, "resource": "collectorjobs"}
            who = {"user": user.get("username"), "uid": user.get("uid")}
            who |= {"groups": user.get("groups"), "extra": user.get("extra")}
            spec = {**who, "resourceAttributes": about}
            return bool((await self._review("authorization.k8s.io/v1", "SubjectAccessReview", spec)).get("allowed"))

        # repr: `groups` and `extra` belong to the user's identity, and are lists.
        return await self._kept((repr(user), namespace), ask)

    async def _kept(self, question: object, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the answer to a question, of the last `VALID_S`; `ask` gets a new one. Errors are not kept."""
        now_s = self._clock()
        if question in self._answers and now_s - self._answers[question][0] < VALID_S:
            known: V = self._answers[question][1]
            return known
        answer = await ask()
        self._answers.pop(question, None)
        self._answers[question] = now_s, answer
        while len(self._answers) > MOST:
            del self._answers[next(iter(self._answers))]
        return answer

    async def _review(self, api_version: str, kind: str, spec: Manifest) -> Manifest:
        review = {"apiVersion": api_version, "kind": kind, "metadata": {}, "spec": spec}
        try:
            async with self._limit:
                found: Manifest = (await self._api.create(review)).get("status") or {}
        except ApiError as error:
            raise web.HTTPServiceUnavailable(text=f"the operator could not check your rights: {error}") from error
        return found


class ReviewedViewer:
    """A viewer with a valid token."""

    def __init__(self, guard: ReviewGuard, token: str) -> None:
        self._guard, self.token = guard, token

    async def user(self) -> Manifest | None:
        """Return who the viewer is; None: the token is not valid any more."""
        return await self._guard.user(self.token)

    async def readable(self, namespaces: Set[str]) -> Set[str]:
        """Return the namespaces whose CollectorJobs the viewer may list."""
        user, asked = await self.user(), list(namespaces)
        if user is None:
            return set()
        if await self._guard.may_list(user, ""):
            return set(asked)
        allowed = await asyncio.gather(*(self._guard.may_list(user, each) for each in asked))
        return {namespace for namespace, readable in zip(asked, allowed, strict=True) if readable}

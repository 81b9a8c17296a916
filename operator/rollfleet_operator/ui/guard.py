"""Who may see what: the API server is asked with each viewer's own token, for the viewer's rights on CollectorJobs."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Set
from http import HTTPStatus
from typing import Final

from aiohttp import web

from rollfleet_api.job import API_VERSION
from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError

VALID_S: Final = 30.0
"""Seconds for which an answer of the API server holds: a withdrawn right ends after this long, on open pages too."""

MOST: Final = 4096
"""The most remembered answers."""

AT_ONCE: Final = 8
"""The most questions to the API server at a time."""

_GROUP: Final = API_VERSION.partition("/")[0]


class ReviewGuard:
    """Admits requests with a bearer token that the API server accepts.

    Args:
        api: The API server, over connections of its own. It needs no credentials: each question has its viewer's token.
        clock: Returns seconds.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._clock, self._limit = api, clock, asyncio.Semaphore(AT_ONCE)
        self._answers: dict[tuple[bytes, str], tuple[float, bool | None]] = {}  # with the time of each, the newest last

    async def admit(self, request: web.Request) -> "ReviewedViewer":
        """Return the viewer of a request.

        Raises:
            web.HTTPUnauthorized: The request has no token, or the API server does not accept it.
            web.HTTPServiceUnavailable: The API server does not answer the question.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise web.HTTPUnauthorized(text="no bearer token: open the page by `kubectl rollfleet ui`")
        viewer = ReviewedViewer(self, token.strip())
        if await self.may_list(viewer.token, "") is None:
            raise web.HTTPUnauthorized(text="the cluster does not accept your token: log in again")
        return viewer

    async def may_list(self, token: str, namespace: str) -> bool | None:
        """Return whether the user of a token may list the CollectorJobs of a namespace; empty: of all.

        None: the token is not valid. An answer counts for `VALID_S`; errors are not kept.
        """
        question, now_s = (hashlib.sha256(token.encode()).digest(), namespace), self._clock()
        if question in self._answers and now_s - self._answers[question][0] < VALID_S:
            return self._answers[question][1]
        answer = await self._ask(token, namespace)
        self._answers.pop(question, None)
        self._answers[question] = now_s, answer
        while len(self._answers) > MOST:
            del self._answers[next(iter(self._answers))]
        return answer

    async def _ask(self, token: str, namespace: str) -> bool | None:
        about = {"namespace": namespace, "verb": "list", "group": _GROUP, "resource": "collectorjobs"}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": about},
        }
        try:
            async with self._limit:
                return bool((await self._api.review(review, token))["allowed"])
        except ApiError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                return None
            raise web.HTTPServiceUnavailable(text=f"your rights could not be checked: {error}") from error


class ReviewedViewer:
    """A viewer with a valid token."""

    def __init__(self, guard: ReviewGuard, token: str) -> None:
        self._guard, self.token = guard, token

    async def readable(self, namespaces: Set[str]) -> Set[str]:
        """Return the namespaces whose CollectorJobs the viewer may list."""
        if await self._guard.may_list(self.token, ""):
            return set(namespaces)
        asked = list(namespaces)
        allowed = await asyncio.gather(*(self._guard.may_list(self.token, each) for each in asked))
        return {namespace for namespace, readable in zip(asked, allowed, strict=True) if readable}

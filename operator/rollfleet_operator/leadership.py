"""The choice of one operator among several: the holder of a Kubernetes Lease works, the others wait for it.

The API server refuses a write of the Lease by a client that does not know its newest version, so that one operator gets
it. Clocks are never compared: each operator measures with its own how long a version of the Lease has not changed.
"""

import asyncio
import logging
import math
import os
import time
from datetime import UTC, datetime
from typing import Final

from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest, built

log = logging.getLogger(__name__)

LEASE_S: Final = 15
"""Seconds without a change of the Lease until another operator takes it."""

VALID_S: Final = 10.0
"""Seconds for which a renewal lets its operator write. The rest of `LEASE_S` is for requests that are on their way."""

RENEW_S: Final = 2.0
LOOK_S: Final = 1.0
ATTEMPT_S: Final = 3.0
"""The longest time for one attempt to renew: a lost connection must leave time for the next."""

EXIT_LOST: Final = 1


class Leadership:
    """The leadership of one operator.

    Args:
        api: The API server, over connections of its own: renewals must not wait for other requests.
        namespace: The namespace of the Lease.
        name: The name of the Lease. The chart has it; an operator makes one that is missing.
        pod: The name of this operator's pod. A restarted container of the pod continues the leadership of the last one.
    """

    def __init__(self, api: Api, namespace: str, name: str, pod: str) -> None:
        self._api, self._namespace, self._name, self._pod = api, namespace, name, pod
        self._version, self._version_s = "", time.monotonic()
        self._valid_until_s = -math.inf
        self._problem = "not tried yet"
        self._renewal: asyncio.Task[None] | None = None

    @property
    def answered(self) -> bool:
        """Whether the last attempt found the Lease."""
        return not self._problem

    @property
    def leads(self) -> bool:
        """Whether this operator has become the leader."""
        return self._renewal is not None

    @property
    def stopped(self) -> bool:
        """Whether a defect has ended the renewal: this operator would write nothing any more."""
        return self._renewal is not None and self._renewal.done()

    async def acquire(self) -> None:
        """Wait until this operator leads, and stay its leader from then on."""
        log.info("waiting for the Lease %s/%s", self._namespace, self._name)
        while not await self._attempt():  # noqa: ASYNC110 (another process decides)
            await asyncio.sleep(LOOK_S)
        log.info("this operator leads")
        self._renewal = asyncio.create_task(self._keep())

    def verify(self) -> None:
        """Raise ApiError if the last renewal is too long ago: another operator may work already."""
        if time.monotonic() >= self._valid_until_s:
            raise ApiError(0, "LeaseExpired", f"the Lease {self._namespace}/{self._name} is not renewed: no writes")

    async def release(self) -> None:
        """Let another operator lead, if this one does, and disconnect."""
        if self._renewal:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
            await self._attempt(release=True)
        await self._api.close()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self._attempt()

    async def _attempt(self, *, release: bool = False) -> bool:
        """Write the Lease, unless another operator holds it; return whether it was written."""
        asked_s = time.monotonic()
        try:
            async with asyncio.timeout(ATTEMPT_S):
                written = await self._write(release=release)
        except (ApiError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
            if problem != self._problem:
                log.warning("Lease %s/%s: %s", self._namespace, self._name, problem)
            self._problem = problem
            return False
        self._problem = ""
        self._valid_until_s = asked_s + VALID_S if written and not release else -math.inf
        return written

    async def _write(self, *, release: bool) -> bool:
        found = await self._api.get("Lease", self._namespace, self._name)
        if found is None and (release or time.monotonic() - self._version_s < LEASE_S):
            raise ApiError(404, "NotFound", f"it does not exist; an operator makes it after {LEASE_S} s")
        if found is None:  # tools such as Argo CD leave it out. Without a holder: several operators may do so at once
            lease = built("Lease", self._name, {})
            lease["metadata"]["namespace"] = self._namespace
            found = await self._api.apply(lease)
        version, spec = found["metadata"]["resourceVersion"], found.get("spec") or {}
        if version != self._version:
            self._version, self._version_s = version, time.monotonic()
        holder = spec.get("holderIdentity")
        if self._renewal and not release and holder not in (None, self._pod):
            log.critical("another operator took the Lease %s/%s: this one ends", self._namespace, self._name)
            os._exit(EXIT_LOST)
        if holder not in (None, self._pod) and (release or time.monotonic() - self._version_s < LEASE_S):
            return False
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        change: Manifest = {"holderIdentity": None if release else self._pod, "renewTime": now}
        if holder != self._pod:
            change |= {"leaseDurationSeconds": LEASE_S, "acquireTime": now}
        patch = {"metadata": {"resourceVersion": version}, "spec": change}
        await self._api.patch("Lease", self._namespace, self._name, patch)
        return True

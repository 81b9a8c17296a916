"""The handlers that kopf calls. They decide nothing: each passes a watched object on to the operator."""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, Final

import kopf

from rollfleet_operator import deep_json, names
from rollfleet_operator.kinds import KINDS, WATCHED
from rollfleet_operator.program import Operator

BACKOFFS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between the attempts of a watch; the last one is repeated."""

deep_json.install()

_OURS = {names.MANAGED_BY: names.FIELD_MANAGER}


class Backoffs:
    """Yield the pauses of a watch. Infinite: kopf exits when delays run out."""

    def __iter__(self) -> Iterator[float]:
        """Return the pauses of one request."""
        return chain(BACKOFFS_S, repeat(BACKOFFS_S[-1]))


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Configure kopf, and start."""
    settings.posting.enabled = False  # the operator writes its own events
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = Backoffs()
    # kopf has one task for each recently changed object. A limit on tasks would count idle ones and delay all others.
    settings.queueing.idle_timeout = 0.2
    settings.scanning.disabled = bool(memo.settings.namespaces)
    for kind in WATCHED:
        settings.watching.label_selectors[KINDS[kind].plural] = names.SELECTOR
    await memo.start()


@kopf.on.login()
def log_in(memo: Operator, **_: Any) -> kopf.ConnectionInfo:
    """Return the API server's address and credentials."""
    return memo.connect()


@kopf.on.cleanup()
async def stop(memo: Operator, **_: Any) -> None:
    """Stop."""
    await memo.stop()


@kopf.on.event("rollfleet.dev", "v1alpha1", "collectorjobs")
async def job_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """Pass on a CollectorJob."""
    memo.seen("CollectorJob", dict(event["object"]), deleted=event["type"] == "DELETED")


@kopf.on.event("batch", "v1", "jobs", labels=_OURS)
async def run_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """Pass on the Kubernetes Job of workers or learner."""
    memo.seen("Job", dict(event["object"]), deleted=event["type"] == "DELETED")


@kopf.on.event("", "v1", "serviceaccounts", labels=_OURS)
async def account_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """Pass on the ServiceAccount of pods."""
    memo.seen("ServiceAccount", dict(event["object"]), deleted=event["type"] == "DELETED")


@kopf.on.event("networking.k8s.io", "v1", "networkpolicies", labels=_OURS)
async def policy_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """Pass on the NetworkPolicy of pods."""
    memo.seen("NetworkPolicy", dict(event["object"]), deleted=event["type"] == "DELETED")

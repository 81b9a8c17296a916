"""What kopf calls. Nothing is decided here: each watch tells the operator what it saw."""

from typing import Any

import kopf

from rollfleet_operator import names
from rollfleet_operator.kinds import KINDS, WATCHED
from rollfleet_operator.program import Operator

_OURS = {names.MANAGED_BY: names.FIELD_MANAGER}


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Operator, **_: Any) -> None:
    """Configure kopf, and begin."""
    settings.posting.enabled = False  # events are ours to write
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = [0.5, 1, 2, 5, 10]
    # One task an object that changed lately. A limit counts idle ones too, and would hold all other objects' news back.
    settings.queueing.idle_timeout = 0.2
    settings.scanning.disabled = bool(memo.settings.namespaces)
    for kind in WATCHED:
        settings.watching.label_selectors[KINDS[kind].plural] = names.SELECTOR
    await memo.start()


@kopf.on.login()
def log_in(memo: Operator, **_: Any) -> kopf.ConnectionInfo:
    """Where the API server is."""
    return memo.connect()


@kopf.on.cleanup()
async def stop(memo: Operator, **_: Any) -> None:
    """End."""
    await memo.stop()


@kopf.on.event("rollfleet.dev", "v1alpha1", "collectorjobs")
async def job_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """A CollectorJob."""
    memo.seen("CollectorJob", dict(event["object"]), gone=event["type"] == "DELETED")


@kopf.on.event("batch", "v1", "jobs", labels=_OURS)
async def run_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """The workers or the learner of a CollectorJob."""
    memo.seen("Job", dict(event["object"]), gone=event["type"] == "DELETED")


@kopf.on.event("", "v1", "pods", labels=_OURS)
async def pod_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """A pod of theirs."""
    memo.seen("Pod", dict(event["object"]), gone=event["type"] == "DELETED")


@kopf.on.event("", "v1", "serviceaccounts", labels=_OURS)
async def account_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """Their identity."""
    memo.seen("ServiceAccount", dict(event["object"]), gone=event["type"] == "DELETED")


@kopf.on.event("networking.k8s.io", "v1", "networkpolicies", labels=_OURS)
async def policy_seen(event: kopf.RawEvent, memo: Operator, **_: Any) -> None:
    """Their fence."""
    memo.seen("NetworkPolicy", dict(event["object"]), gone=event["type"] == "DELETED")

"""The one limit that Kubernetes' ResourceQuota cannot set: the storage of a job on NATS."""

from rollfleet_api.job import CollectorJob
from rollfleet_operator.errors import LimitExceeded


def refusal(job: CollectorJob, most_bytes: int | None) -> LimitExceeded | None:
    """Return why a job may not have its `delivery.maxBytes`: above `most_bytes` (None: no limit); None: it may."""
    asked = job.spec.delivery.limit_bytes
    if most_bytes is None or asked <= most_bytes:
        return None
    return LimitExceeded(
        f"the job asks for {asked / (1 << 20):g} MiB (`delivery.maxBytes`), and a job may have "
        f"{most_bytes / (1 << 20):g} MiB here: ask for less, or let the cluster's administrator raise the chart's "
        "`nats.maxBytesPerJob`"
    )

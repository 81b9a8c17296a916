"""The one limit that Kubernetes' ResourceQuota cannot set: the storage of a job on NATS."""

from rollfleet_api.job import CollectorJob
from rollfleet_operator.errors import LimitExceeded


def within(job: CollectorJob, most_bytes: int | None) -> CollectorJob:
    """Return a job with as much storage as it asks for and may have."""
    if refusal(job, most_bytes) is None:
        return job
    delivery = job.spec.delivery.model_copy(update={"max_bytes": str(most_bytes)})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"delivery": delivery})})


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

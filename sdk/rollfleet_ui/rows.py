"""Rows of the page from the objects of a job: the same for every source, so that they never disagree."""

import math
from collections.abc import Sequence

from rollfleet_api.diagnosis import Diagnosis
from rollfleet_api.messages import LearnerStatus, WorkerStatus
from rollfleet_api.text import last_line, one_line
from rollfleet_api.times import parse_time
from rollfleet_api.views import JobView
from rollfleet_ui.model import JobRow, WorkerRow

SKETCH_POINTS = 30


def job_row(job: JobView, diagnosis: Diagnosis, returns: Sequence[float] = ()) -> JobRow:
    """Return the row of a job. `returns` are mean returns for the sketch of its curve."""
    status = job.status
    return JobRow(
        key=job.key,
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        uid=job.metadata.uid,
        phase=status.phase or "Unknown",
        diagnosis=diagnosis,
        workers_ready=status.workers.ready,
        workers_desired=status.workers.desired,
        frames=status.frames,
        total_frames=job.spec.collect.total_frames,
        frames_per_second=status.frames_per_second,
        mean_return=status.mean_return,
        returns=list(returns),
        published_version=status.published_version,
        applied_version=status.applied_version,
        lag=job.lag,
        created=job.metadata.creation_timestamp.timestamp(),
        ended=parse_time(status.completion_time) if status.completion_time else None,
    )


def worker_row(beat: WorkerStatus, published: int | None) -> WorkerRow:
    """Return what a worker's heartbeat says; the source adds the rest by `model_copy`.

    `published` is the newest version of the weights. None: unknown.
    """
    return WorkerRow(
        process=f"worker {beat.worker}",
        index=beat.worker,
        state=beat.state,
        incarnation=beat.incarnation,
        version=beat.version or None,
        lag=max(published - beat.version, 0) if published and beat.version else None,
        frames=beat.frames,
        frames_per_second=beat.frames_per_second,
        mean_return=_finite(beat.mean_return),
        last_error=one_line(last_line(beat.error)),
    )


def learner_row(beat: LearnerStatus | None, state: str, frames_per_second: float) -> WorkerRow:
    """Return what the learner's heartbeat says; None: none has come."""
    if beat is None:
        return WorkerRow(process="learner", state=state)
    return WorkerRow(
        process="learner",
        state=state,
        incarnation=beat.session,
        version=beat.version or None,
        lag=beat.lag,
        frames=beat.frames,
        frames_per_second=frames_per_second,
        mean_return=_finite(beat.mean_return),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

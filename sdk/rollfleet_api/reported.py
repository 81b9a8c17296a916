"""What a job's status takes from heartbeats: the same on a cluster and on one machine."""

from collections.abc import Iterable, Set
from math import isfinite

from rollfleet_api.messages import Evaluation, LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.status import BatchesStatus, EvaluationStatus, WaitsStatus


def reported(learner: LearnerStatus | None, workers: Iterable[WorkerStatus]) -> dict[str, object]:
    """Return the fields of a job's status that its heartbeats report; without a learner none."""
    if learner is None:
        return {}
    return {
        "frames": learner.frames,
        "mean_return": _rounded(learner.mean_return),
        "episodes": learner.episodes,
        "evaluation": _evaluation(learner.evaluation),
        "non_finite": learner.non_finite,
        "lag": learner.lag,
        "waits": _waits(learner, list(workers)),
        "published_version": learner.version or None,
        "applied_version": learner.applied_version or None,
        "batches": BatchesStatus(delivered=learner.batches, dropped=learner.dropped),
    }


def progress(states: Set[WorkerState], frames_per_second: float) -> tuple[str, str]:
    """Return the reason and the message of the condition Progressing, from the states of the workers that run.

    Workers whose frames the learner takes wait now and then: each wait would be a change.
    """
    if WorkerState.COLLECTING in states or (states and frames_per_second):
        return "Collecting", "workers are collecting"
    if WorkerState.WAITING_FOR_WEIGHTS in states:
        return "WaitingForWeights", "workers wait for the learner's first weights, or for newer ones"
    if WorkerState.WAITING_FOR_LEARNER in states:
        return "WaitingForLearner", "workers wait for the learner"
    return "Starting", "workers are starting"


def _waits(learner: LearnerStatus, workers: Iterable[WorkerStatus]) -> WaitsStatus:
    return WaitsStatus(
        learner_seconds=int(learner.waited_s),
        workers_for_learner_seconds=sum(
            int(worker.waited_for_space_s) + int(worker.waited_for_round_s) for worker in workers
        ),
        workers_for_weights_seconds=sum(int(worker.waited_for_weights_s) for worker in workers),
    )


def _evaluation(found: Evaluation | None) -> EvaluationStatus | None:
    if found is None:
        return None
    return EvaluationStatus(version=found.version, mean_return=_rounded(found.mean_return), episodes=found.episodes)


def _rounded(value: float | None) -> float | None:
    """Round to four digits; None: unknown, or no number that JSON has."""
    return None if value is None or not isfinite(value) else float(f"{value:.4g}")

"""The part of a job about evaluation: workers of their own that run whole episodes on some versions of the weights."""

from pydantic import Field

from rollfleet_api.collection import Exploration
from rollfleet_api.fields import MAX_COUNT, FreeForm, Model
from rollfleet_api.versions import count_of

MAX_EVALUATION_WORKERS = 1024


class EvaluationSpec(Model):
    """Whole episodes on every few versions of the weights, by workers whose frames never reach the learner.

    Example:
        >>> evaluation = EvaluationSpec(every=10, workers=2)
        >>> [evaluation.worker_of(version) for version in (5, 10, 20, 30)]
        [None, 1, 0, 1]
    """

    workers: int = Field(
        default=1,
        ge=1,
        le=MAX_EVALUATION_WORKERS,
        description="Evaluation workers, besides the job's `workers`. They take the versions in turn.",
    )
    every: int = Field(
        ge=1,
        le=MAX_COUNT,
        description="Evaluate the versions that are multiples of this number. An evaluation worker that is behind "
        "skips to its newest one.",
        examples=[10],
    )
    episodes: int = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="Whole episodes for each version, in `env.numEnvs` environments at a time. Every version gets "
        "episodes with the same seeds, made of `collect.seed`.",
    )
    exploration: Exploration = Field(
        default=Exploration.DETERMINISTIC,
        strict=False,
        description="How actions are taken from the policy's distribution, as in `collect.exploration`.",
    )

    settings: FreeForm = Field(
        default={},
        description="What its environments get at each reset, as workers' environments get that of `set_env`.",
        examples=[{"level": 9}],
    )

    def worker_of(self, version: int) -> int | None:
        """Return the index of the evaluation worker that evaluates a version; None: no one does."""
        turn, rest = divmod(count_of(version), self.every)
        return turn % self.workers if version and not rest else None

"""The evaluations that a learner has received."""

from typing import Final

from rollfleet_api.messages import Evaluation

KEPT: Final = 1000


class EvaluationLog:
    """The evaluations of the newest 1,000 versions, one for each version: a repeated one counts once.

    Example:
        >>> log = EvaluationLog()
        >>> log.newest is None
        True
    """

    def __init__(self) -> None:
        self._by_version: dict[int, Evaluation] = {}

    def add(self, evaluation: Evaluation) -> None:
        """Keep an evaluation."""
        self._by_version[evaluation.version] = evaluation
        if len(self._by_version) > KEPT:
            del self._by_version[min(self._by_version)]

    def all(self) -> tuple[Evaluation, ...]:
        """Return the evaluations by version."""
        return tuple(sorted(list(self._by_version.values()), key=lambda each: each.version))

    @property
    def newest(self) -> Evaluation | None:
        """The evaluation of the newest version; None: no evaluation yet."""
        return max(list(self._by_version.values()), key=lambda each: each.version, default=None)

"""What keeps an environment or a policy from being translated."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Untranslated:
    """An environment or a policy stays TorchRL's. `reason`: what of it has no translation."""

    reason: str

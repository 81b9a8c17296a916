"""Values that are allowed, and most likely mistakes: each kind is one warning, at the first."""

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rollfleet.data.batch import TRAJECTORY, Key
from rollfleet.data.tensor_memory import Array
from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.space_tree import SpaceTree, bounds
from rollfleet.envs.spaces import action_keys
from rollfleet.rollout.infos import Infos

log = logging.getLogger(__name__)


class Suspicions:
    """Looks at the frames of each fragment, once it is complete."""

    def __init__(self, env: VectorEnv, actions: SpaceTree) -> None:
        """Prepare for the environments of a rollout, and the tree of their action space."""
        self._env, self._infos = env, True
        self._actions = {
            key: (leaf, *bounds(leaf)) for key, leaf in zip(action_keys(actions), actions.leaves.values(), strict=True)
        }

    def check(self, steps: Mapping[Key, Tensor], infos: Infos | None, *, ended: bool) -> None:
        """Warn of actions outside of the space, and of chosen infos that no frame has. `FiniteCheck` finds NaN.

        `ended`: whether an episode has ended in these frames. Some infos come at the end of an episode only.
        """
        for key, (space, low, high) in tuple(self._actions.items()):
            values = steps[key].numpy()
            if (wrong := _first(steps, key, ~((values < low) | (values > high)))) is not None:
                del self._actions[key]
                log.warning("the policy returned the action %s, outside of %s: clip or rescale it", wrong, space)
        if infos is not None and ended and self._infos:
            self._infos = False
            for name in sorted(infos.missing):
                seen = ", ".join(map(repr, sorted(getattr(self._env.unwrapped, "info_names", ()))))
                its = f"; they have {seen}" if seen else ""
                log.warning("info_keys: no info of %s has had %r by the end of an episode%s", self._env, name, its)


def _first(steps: Mapping[Key, Tensor], key: Key, right: Array) -> Any:
    """Return the first value of a frame that is not right; None: all are."""
    if right.all():
        return None
    wrong = ~right & (steps[TRAJECTORY].numpy() >= 0).reshape(*right.shape[:2], *[1] * (right.ndim - 2))
    return steps[key].numpy()[wrong][0] if wrong.any() else None

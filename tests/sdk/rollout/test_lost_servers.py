"""A server that dies with some environments: each of them has failed."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.rollout.failing import FAILED, NO_LIMIT, Failing, check

import rollfleet


class DyingOnce(Failing):
    """Its process dies once: in a seventh frame, or in the first frame after it raised once in a seventh one."""

    def __init__(self, folder: Path, raises: bool) -> None:
        super().__init__()
        self._raises, self._raised, self._died = raises, folder / "raised", folder / "died"

    def step(self, action: Any) -> Any:
        if self._raises and self.frame == 7 and not self._raised.exists():
            self._raised.touch()
            raise ConnectionError("the simulator is gone")
        if self._raised.exists() is self._raises and self.frame == 7 * (not self._raises) and not self._died.exists():
            self._died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("raises", [False, True], ids=["", "while it steps one environment again"])
def test_the_death_of_a_server_is_one_failure_of_all_its_environments(raises: bool, tmp_path: Path) -> None:
    kwargs = {"folder": tmp_path, "raises": raises}
    envs = rollfleet.make_vec(DyingOnce, num_envs=12, workers=1, env_kwargs=kwargs)
    with rollfleet.Collector(envs, frames_per_batch=12 * 20, env_failures={"maxShare": 0.5}) as collector:
        batch = next(collector)
        assert check(batch) == (12, 0)
        assert batch[FAILED][:, 6].all()
        counted = {"ChildProcessError": 12} | ({"ConnectionError": 1} if raises else {})
        assert collector.stats().failed_episodes == counted


class DyingInReset(Failing):
    """Ends after five frames; its process dies once, in the reset after that."""

    length = 5

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._resets_so_far, self._died = 0, folder / "died"

    def reset(self, **options: Any) -> Any:
        self._resets_so_far += 1
        if self._resets_so_far == 2 and not self._died.exists():
            self._died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**options)


@pytest.mark.parametrize("more", [{}, {"trajs_per_batch": 4}], ids=["rows", "whole trajectories"])
def test_the_death_of_a_server_in_a_reset_ends_the_episodes_of_its_other_environments(
    more: dict[str, Any], tmp_path: Path
) -> None:
    envs = rollfleet.make_vec([partial(DyingInReset, tmp_path), Failing, Failing], workers=1)
    with rollfleet.Collector(envs, frames_per_batch=3 * 12, env_failures=NO_LIMIT, **more) as collector:
        failed = sum(check(next(collector))[0] for _ in range(3))
        assert collector.stats().failed_episodes == {"ChildProcessError": 3}
    assert failed == 2, "the episode that had ended has not failed"

"""`init_fn`, `pre_collect_hook` and `post_collect_hook`, in every place."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.counting import error_of
from tests.sdk.places import Collect

from rollfleet.errors import JobInvalid
from rollfleet.testing.counting_env import CountingEnv


def test_workers_call_their_hooks(collect: Collect, tmp_path: Path) -> None:
    calls, workers = tmp_path / "calls", collect.workers

    def call(text: str) -> None:
        with calls.open("a") as file:
            file.write(f"{text}\n")

    def make() -> CountingEnv:
        call("environment")
        return CountingEnv()

    def after(batch: Any) -> None:
        ends = [*batch.shape, batch["next", "observation"].shape[-1]]
        call(f"after a batch of {ends} up to {batch['next', 'observation'].max():.0f}")

    hooks = {"init_fn": lambda: call("init"), "pre_collect_hook": lambda: call("before"), "post_collect_hook": after}
    collector = collect(make, num_envs=2, frames_per_batch=8 * workers, **hooks)
    for _ in islice(collector, 2):
        pass
    lines = calls.read_text().splitlines()
    assert lines[0] == "init"
    assert sorted(set(lines)) == sorted(
        ["init", "environment", "before", "after a batch of [2, 4, 1] up to 4", "after a batch of [2, 4, 1] up to 8"]
    )
    assert [lines.count(each) for each in ("init", "before")] == [workers, 2 * workers]
    assert sum(each.startswith("after") for each in lines) == 2 * workers


class Keeps:
    """Keeps each batch as it was given, and raises if one has changed."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def __call__(self, batch: Any) -> None:
        self._kept.append((batch, batch.clone()))
        if not all((given == before).all() for given, before in self._kept):
            raise ArithmeticError("a batch has changed")


def test_a_hook_may_keep_its_batches(collect: Collect) -> None:
    collector = collect(CountingEnv, num_envs=2, frames_per_batch=8 * collect.workers, post_collect_hook=Keeps())
    assert [batch.numel() for batch in islice(collector, 4)] == [8 * collect.workers] * 4


def test_what_a_hook_writes_into_its_batch_is_its_own(collect: Collect) -> None:
    collector = collect(CountingEnv, num_envs=2, frames_per_batch=8, post_collect_hook=lambda batch: batch.zero_())
    assert next(collector)["next", "observation"].min() > 0


@pytest.mark.parametrize("name", ["pre_collect_hook", "post_collect_hook"])
def test_the_error_of_a_hook_reaches_the_learner(collect: Collect, name: str) -> None:
    def broken(*_: Any) -> None:
        raise ArithmeticError("the hook broke")

    collector = collect(CountingEnv, num_envs=1, frames_per_batch=8, **{name: broken})
    assert "the hook broke" in error_of(collector)


@pytest.mark.parametrize("name", ["init_fn", "pre_collect_hook", "post_collect_hook"])
def test_a_hook_is_a_function_or_its_name(here: Any, name: str) -> None:
    for wrong in (5, lambda one, other: None):
        with pytest.raises(JobInvalid, match=rf"^`{name}` is a function (without|of one) .*, or its `module:callable`"):
            here(CountingEnv, frames_per_batch=8, **{name: wrong})
    with pytest.raises(JobInvalid, match=rf"^{name} \(`collect\.\w+`\): module 'nowhere' was not found"):
        here(CountingEnv, frames_per_batch=8, **{name: "nowhere:hook"})
    next(here(CountingEnv, frames_per_batch=8, init_fn="gc:collect"))

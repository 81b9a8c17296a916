"""Explicit signatures whose implementation knows which keywords the caller gave."""

import inspect
from typing import Any

import numpy as np
import pytest

from rollfleet import Collector, connect
from rollfleet.learner.keywords import Keywords, hints_names, implemented_by


def _keep(env: Any, *, keywords: Keywords) -> tuple[Any, Keywords]:
    return env, keywords


@implemented_by(_keep, caller="rollfleet.example")
def example(env: Any, *, frames: int, quiet: bool = True, device: str | None = None) -> Any:
    """An example."""


def test_the_declared_signature_and_docstring_are_shown() -> None:
    assert str(inspect.signature(example)).startswith("(env: Any, *, frames: int, quiet: bool = True, ")
    assert example.__doc__ == "An example."


def test_the_implementation_knows_a_given_keyword_from_its_default() -> None:
    env, keywords = example(3, frames=8, quiet=True)
    assert env == 3
    assert keywords.given == {"frames": 8, "quiet": True}
    assert (keywords["frames"], keywords["quiet"], keywords["device"]) == (8, True, None)


def test_a_none_that_is_the_default_counts_as_not_given() -> None:
    _, keywords = example(3, frames=8, device=None)
    assert "device" not in keywords.given


def test_a_none_counts_as_not_given_only_where_the_annotation_allows_it() -> None:
    _, keywords = example(3, frames=None, quiet=None)  # type: ignore[arg-type]
    assert keywords.given == {"frames": None, "quiet": None}


def test_a_number_of_numpy_is_taken_as_pythons() -> None:
    _, keywords = example(3, frames=np.int64(8), quiet=np.True_)  # type: ignore[arg-type]
    assert [type(value) for value in keywords.given.values()] == [int, bool]


@pytest.mark.parametrize(
    ("function", "name", "hint"),
    [
        (Collector, "create_env_fn", "it is TorchRL's, and the collectors of `rollfleet.torchrl` take it"),
        (connect, "storing_device", "it is TorchRL's, and the collectors of `rollfleet.torchrl` take it"),
        (connect, "total_frames", r"the job sets it: `spec\.collect\.totalFrames`"),
        (Collector.over, "workers", r"the job sets it: `spec\.workers`"),
    ],
)
def test_a_keyword_from_elsewhere_is_hinted_with_its_place(function: Any, name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"has no keyword `{name}`; {hint}$"):
        function(**{name: 1})


def test_a_keyword_without_a_default_may_be_missing() -> None:
    _, keywords = example(env=3)  # type: ignore[call-arg]
    with pytest.raises(KeyError):
        keywords["frames"]


def test_an_unknown_keyword_raises_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"rollfleet.example has no keyword `frame`; did you mean `frames`\?"):
        example(3, frame=8)  # type: ignore[call-arg]


def test_a_missing_argument_is_reported_under_the_public_name() -> None:
    with pytest.raises(TypeError, match=r"Collector\.__init__\(\) missing 1 required positional argument: 'env'"):
        Collector(frames_per_batch=8)  # type: ignore[call-arg]


def test_hints_name_positional_parameters_too() -> None:
    @hints_names(caller="rollfleet.other")
    def other(policy: Any = None, *, rank: int = 0) -> int:
        return rank

    assert other(rank=2) == 2
    with pytest.raises(TypeError, match=r"rollfleet.other has no keyword `polcy`; did you mean `policy`\?"):
        other(polcy=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("public", [Collector, Collector.over, connect])
def test_every_public_keyword_is_explicit_and_documented(public: Any) -> None:
    function = Collector.__init__ if public is Collector else public
    documented = inspect.getdoc(function) or ""
    for name, parameter in inspect.signature(public).parameters.items():
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
        assert f"\n    {name}: " in documented, name

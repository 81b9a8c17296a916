"""Explicit signatures: which keywords the caller gave, and hints for unknown names."""

import inspect
from typing import Any

import numpy as np
import pytest
from tests.sdk.given_keywords import keywords_of

from rollfleet import Collector, Processes, connect


def test_a_keyword_is_given_if_its_value_is_not_the_default() -> None:
    keywords = keywords_of(frames_per_batch=8, num_envs=1, start_method="fork", quiet=True)
    assert keywords.given == {"frames_per_batch", "start_method"}
    assert (keywords["frames_per_batch"], keywords["num_envs"], keywords["device"]) == (8, 1, None)


def test_a_number_of_numpy_is_taken_as_pythons() -> None:
    given = {"frames_per_batch": np.int64(8), "step_count": np.True_, "stragglers_threshold": np.float32(0.5)}
    keywords = keywords_of(**given)
    assert [keywords[name] for name in given] == [8, True, 0.5]
    assert [type(keywords[name]) for name in given] == [int, bool, float]


@pytest.mark.parametrize(
    ("function", "name", "hint"),
    [
        (Collector, "frames_per_batsh", r"did you mean `frames_per_batch`\?"),
        (
            Collector,
            "interruptor",
            r"TorchRL's collectors, .*, are in `rollfleet\.torchrl`; .*: env, policy, .*, cluster",
        ),
        (Collector, "create_env_fn", r"did you mean `env`\?"),
        (Collector, "total_timesteps", r"did you mean `total_frames`\?"),
        (Collector, "n_steps", r"did you mean `frames_per_batch`\?"),
        (Collector, "storing_device", r"did you mean `device`\?"),
        (Collector, "start_method", r"write `processes=rollfleet\.Processes\(start_method=\.\.\.\)`"),
        (Collector, "n_envs", r"did you mean `num_envs`\?"),
        (Collector, "num_env_runners", r"did you mean `workers`\?"),
        (Collector, "precision", r"write `weight_scheme=rollfleet\.schemes\.Whole\('bfloat16'\)`"),
        (Collector, "wrappers", r"wrap the environment in a function, and pass that as `env`"),
        (Collector, "split_trajs", r"write `postproc=rollfleet\.split_trajectories`"),
        (connect, "total_frames", r"the job sets it: `spec\.collect\.totalFrames`"),
        (Collector.over, "workers", r"the job sets it: `spec\.workers`"),
    ],
)
def test_an_unknown_keyword_is_hinted_with_the_one_to_write(function: Any, name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"has no keyword `{name}`; {hint}$"):
        function(**{name: 1})


def test_a_missing_argument_is_reported_under_the_public_name() -> None:
    with pytest.raises(TypeError, match=r"Collector\.__init__\(\) missing 1 required positional argument: 'env'"):
        Collector(frames_per_batch=8)  # type: ignore[call-arg]


@pytest.mark.parametrize("public", [Collector, Collector.over, connect, Processes])
def test_every_public_keyword_is_explicit_and_documented(public: Any) -> None:
    documented = inspect.getdoc(Collector.__init__ if public is Collector else public) or ""
    for name, parameter in inspect.signature(public).parameters.items():
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
        assert f"\n    {name}: " in documented, name

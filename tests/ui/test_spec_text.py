"""The spec of a job, as the page shows it."""

import yaml

from rollfleet_api.job import CollectorJobSpec
from rollfleet_ui.spec_text import defaulted, spec_text

GIVEN = {
    "workers": 3,
    "env": {"id": "CartPole-v1", "kwargs": {"name": "<script>", "deep": {"list": [1, 2]}}},
    "policy": {"mlp": {"hidden": [8]}},
    "collect": {"framesPerBatch": 64},
}


def test_the_text_is_the_same_spec_with_its_defaults() -> None:
    spec = CollectorJobSpec.model_validate(GIVEN)
    read = yaml.safe_load(spec_text(spec))
    assert CollectorJobSpec.model_validate(read) == spec
    assert read["weights"]["interval"] == spec.weights.interval


def test_each_default_has_a_path_in_the_text() -> None:
    spec = CollectorJobSpec.model_validate(GIVEN)
    paths, read = defaulted(spec), yaml.safe_load(spec_text(spec))
    assert {"mode", "weights.interval", "policy.mlp.activation"} <= set(paths)
    assert not {"workers", "env.id", "env.kwargs.name", "policy.mlp.hidden", "collect.framesPerBatch"} & set(paths)
    for path in paths:
        value = read
        for part in path.split("."):
            value = value[part]

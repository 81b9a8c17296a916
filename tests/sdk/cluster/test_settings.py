"""`rollfleet.Cluster`: each wrong value is an error that names it."""

from typing import Any

import pytest

from rollfleet import Cluster
from rollfleet.errors import JobInvalid


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"memory": "4 GB"}, r"Cluster\(memory=\): `4 GB` is not a quantity; write `4Gi`"),
        ({"namespace": "Team"}, r"Cluster\(namespace=\): `Team` may only hold .* write e.g. `team`"),
        ({"name": 5}, r"Cluster\(name=\): .*got 5"),
        ({"gpu": -1}, r"Cluster\(gpu=\): must be at least 0, got -1"),
        ({"cpu": True}, r"Cluster\(cpu=\): .*got True"),
        ({"image": "a b"}, r"Cluster\(image=\): expected the name of an image"),
        ({"keep": 1}, r"Cluster\(keep=\): expected True or False, got 1"),
        ({"timeout_s": -1}, r"Cluster\(timeout_s=\): must be between 0"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(JobInvalid, match=message):
        Cluster(**values)


def test_amounts_may_be_numbers() -> None:
    assert Cluster(cpu=0.5, memory=1 << 30).spec()["resources"]["requests"] == {"cpu": "0.5", "memory": "1073741824"}

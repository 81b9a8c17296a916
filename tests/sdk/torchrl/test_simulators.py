"""Simulators whose packages the other tests do not have: Brax and DM Control, in a Python environment of their own."""

import os
import sys
from pathlib import Path

import pytest
from tests.own_environment import python_with
from tests.running import output_of

ENVS = Path(__file__).parents[1] / "rollout" / "test_torchrl_envs.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_batches_of_brax_and_of_dm_control_equal_torchrls(tmp_path: Path) -> None:
    python = python_with(tmp_path, "brax", "dm_control", "mujoco<4")
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])  # it has the nats-server
    command = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", ENVS, "-k", "brax or dm_control")
    output = output_of(*command, env=os.environ | {"PATH": path, "JAX_PLATFORMS": "cpu"})
    assert "6 passed" in output, output

"""The operator's settings."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollfleet_operator.settings import Settings, SettingsInvalid


@pytest.mark.parametrize(
    "environ",
    [
        {"ROLLFLEET_PORT": "http"},
        {"ROLLFLEET_UI_PORT": "65536"},
        {"ROLLFLEET_NETWORK_POLICIES": "maybe"},
        {"ROLLFLEET_WORKERS": "0"},
        {"ROLLFLEET_RESYNC_S": "0"},
        {"ROLLFLEET_NATS_TO": "anywhere"},
        {"ROLLFLEET_DNS": "[1]"},
        {"ROLLFLEET_LEASE": "rollfleet", "ROLLFLEET_POD": "rollfleet-0"},
        {"ROLLFLEET_LEASE": "site/rollfleet"},
    ],
)
def test_mistake_is_named(environ: dict[str, str]) -> None:
    name = next(iter(environ))
    with pytest.raises(SettingsInvalid, match=name):
        Settings.read(environ)


def test_program_with_invalid_settings_reports_it_and_exits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rollfleet_operator"],
        env={"ROLLFLEET_PORT": "http"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "ROLLFLEET_PORT='http'" in done.stderr

"""What runs in the images: no root, nothing that can be written, nothing to build with; no torch for the operator."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.lab import Lab, Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LOOK = """
import importlib.util, json, os, shutil
def writable(folder):
    try:
        open(os.path.join(folder, "x"), "w").close()
    except OSError:
        return False
    return True
print(json.dumps({
    "user": os.getuid(),
    "tools": [tool for tool in ("cc", "gcc", "g++", "clang", "make") if shutil.which(tool)],
    "torch": importlib.util.find_spec("torch") is not None,
    "writable": [folder for folder in ("/", "/opt/rollfleet", "/etc", "/tmp") if writable(folder)],
}))
"""


def seen(kubectl: Callable[..., str], pod: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kubectl("exec", pod, "--", "python", "-P", "-c", LOOK))
    return found


def test_programs_run_unprivileged_without_write_access_or_build_tools(
    release: Release, lab: Lab, counting: dict[str, Any]
) -> None:
    del counting["spec"]["learner"]  # it has the workers' image
    lab.apply(counting)
    lab.wait_for_workers("counting", 2)
    bare = {"user": 65532, "tools": [], "writable": ["/tmp"]}
    assert seen(release.kubectl, "deployment/rollfleet") == bare | {"torch": False}
    worker = lab.pods("worker")[0]["metadata"]["name"]
    assert seen(lab.kubectl, f"pod/{worker}") == bare | {"torch": True}

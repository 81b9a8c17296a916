"""What importing a package may need, and what it may do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs in its own interpreter: imports a package and each of its modules.
WALK = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if not name.endswith("__main__") and not name.startswith("rollfleet.torchrl"):  # which is made of TorchRL
        importlib.import_module(name)
"""

REFUSE = """
import sys
class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ImportError(f"{name} was imported, and must not be")
sys.meta_path.insert(0, Refusal())
"""

# Third parties may read what they like; ours are the worker's documented variables.
WATCH = """
import os, sys
seen = []
class Watched(type(os.environ)):
    def __getitem__(self, key):
        if key.startswith(("ROLLFLEET", "NATS")):
            seen.append(f"read {key}")
        return super().__getitem__(key)
os.environ.__class__ = Watched
def watch(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"):
        seen.append(event)
sys.addaudithook(watch)
"""


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLFLEET", "NATS"))}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


REFUSED = ("torch", "tensordict", "numpy", "gymnasium", "kopf", "kubernetes", "nats", "rollfleet", "rollfleet_operator")
"""What the packages that both sides share may not import."""


@pytest.mark.parametrize(
    ("package", "refused"),
    [
        ("rollfleet_operator", ("torch", "tensordict", "gymnasium", "kubernetes", "rollfleet")),
        ("rollfleet_api", REFUSED),
        ("rollfleet_ui", REFUSED),
        (
            "rollfleet",
            (
                "kopf",
                "kubernetes",
                "prometheus_client",
                "matplotlib",
                "mujoco",
                "pytest",
                "tensorboard",
                "torchrl",
                "rollfleet_operator",
            ),
        ),
    ],
)
def test_importing_needs_no_refused_package_and_has_no_effect(
    package: str, refused: tuple[str, ...], tmp_path: Path
) -> None:
    # Without `kubernetes` also because kopf would import it, whose urllib3 probes for IPv6.
    done = run(REFUSE + WATCH + WALK + "print(seen)", package, ",".join(refused), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_an_effect_of_importing_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "hasty.py").write_text(
        "import os, socket\nos.environ.get('NATS_URL')\nsocket.socket().bind(('127.0.0.1', 0))\n__path__ = []\n"
    )
    done = run(WATCH + WALK + "print(seen)", "hasty", cwd=tmp_path)
    assert done.stdout == "['read NATS_URL', 'socket.bind']\n", done.stderr

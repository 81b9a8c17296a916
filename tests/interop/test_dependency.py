import subprocess
import sys

COLLECT = """
import sys
import rollfleet
with rollfleet.Collector("CartPole-v1", frames_per_batch=4, total_frames=4) as collector:
    list(collector)
sys.exit(any(name.partition(".")[0] == "torchrl" for name in sys.modules))
"""


def test_collecting_from_gymnasium_imports_no_torchrl() -> None:
    assert subprocess.run([sys.executable, "-c", COLLECT], check=False).returncode == 0

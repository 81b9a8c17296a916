"""NATS's disk is full: the job waits, and continues when there is space again."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.fleet import Fleet
from tests.faults.record import check, missing

SPEC: dict[str, Any] = {
    "workers": 2,
    "env": {"entrypoint": "traced_env:TracedEnv", "numEnvs": 2},
    "policy": {"mlp": {"hidden": [32]}},
    "collect": {"framesPerBatch": 1024},
    "delivery": {"maxBytes": "16Mi"},
    "weights": {"interval": 0, "maxLag": 1_000_000},
}
DISK_BYTES = 64 << 20


class Disk:
    """A separate file system for NATS's storage."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount a disk for the fleet's nats-server."""
    folder = tmp_path / "nats-0/jetstream"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False) if os.geteuid() == 0 else None
    if done is None or done.returncode:
        pytest.skip(f"needs the right to mount a small file system: {done.stderr if done else 'run as root'}")
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_a_full_disk_pauses_the_job_and_loses_no_batch(
    mode: str, disk: Disk, start_fleet: Callable[..., Fleet]
) -> None:
    fleet = start_fleet(mode=mode, **SPEC)
    for index in range(2):
        fleet.start_worker(index)
    fleet.start_learner()
    fleet.wait_for(lambda: len(fleet.events("handed over")) >= 3, "the first batches", 120.0)
    disk.fill()
    fleet.wait_for(lambda: not fleet.nats_stores(), "NATS notices that its disk is full")
    disk.free()
    fleet.end_nats()  # a nats-server with a full disk answers nothing until it is restarted
    fleet.start_nats()
    again_s = time.monotonic()

    def continues() -> bool:
        since = [each for each in fleet.events("handed over") if each["s"] > again_s]
        workers_seen = {fragment["identity"].split(".")[0] for each in since for fragment in each["fragments"]}
        return len(since) >= 5 and len(workers_seen) == 2

    fleet.wait_for(continues, "batches of every worker", 120.0)
    for process in fleet.workers.values():
        process.terminate()
    for process in fleet.workers.values():
        process.join(30)
        assert process.exitcode == 143, fleet.words()
    if mode == "Async":
        fleet.wait_for(lambda: not missing(fleet, []), "the batches that NATS confirmed")
    check(fleet)

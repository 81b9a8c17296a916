"""NATS's disk is full: the job waits, and continues when there is space again."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.fleet import SPEC, Fleet
from tests.faults.record import check, missing

JOB = {**SPEC, "collect": {"framesPerBatch": 1024}, "delivery": {"maxBytes": "16Mi"}}
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
    fleet = start_fleet(mode=mode, **JOB)
    fleet.start()
    disk.fill()
    fleet.wait_for(lambda: not fleet.nats_stores(), "NATS notices that its disk is full")
    disk.free()
    fleet.end_nats()  # a nats-server with a full disk answers nothing until it is restarted
    fleet.start_nats()
    fleet.wait_for_every_worker(5, time.monotonic())
    fleet.end_workers()
    if mode == "Async":
        fleet.wait_for(lambda: not missing(fleet, []), "the batches that NATS confirmed")
    check(fleet)

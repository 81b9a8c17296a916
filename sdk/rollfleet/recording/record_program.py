"""What `rollfleet record` runs: a recorder, until its job ends or a signal stops it."""

import signal
import sys
from pathlib import Path
from types import FrameType

from rollfleet.errors import RollfleetError
from rollfleet.recording.observation import record
from rollfleet_api.environment import Address

EXIT_COMPLETE, EXIT_FAILURE, EXIT_OF_SIGNALS = 0, 1, 128


def main(address: Address, folder: Path, *, segment_bytes: int, timeout_s: float) -> int:
    """Record until the job ends.

    Args:
        address: Where the job is.
        folder: Where batches go.
        segment_bytes: Of one file, at most.
        timeout_s: How long to wait for NATS, and then for the job.

    Returns:
        0: the job has ended. 1: something broke. 130, 143: stopped by Ctrl-C, SIGTERM; what had come is written.
    """
    told: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        if len(told) > 1:  # once more: leave it unfinished
            raise SystemExit(EXIT_OF_SIGNALS + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        recorder = record(
            address.job,
            folder,
            address=address.url,
            credentials=address.credentials,
            segment_bytes=segment_bytes,
            timeout_s=timeout_s,
        )
        with recorder:
            print(f"recording {address.job} to {folder}", flush=True)
            while not (told or recorder.wait(0.2)):
                pass
    except (RollfleetError, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return EXIT_FAILURE
    seen = recorder.counts()
    print(
        f"recorded {seen.batches:,} batches, {seen.frames:,} frames, {seen.bytes / 1e6:,.1f} MB; "
        f"{seen.missed:,} missed, {seen.corrupt:,} unreadable"
    )
    return EXIT_OF_SIGNALS + told[0] if told else EXIT_COMPLETE

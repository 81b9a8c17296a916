"""The program behind `rollfleet record`: write a job's batches to disk until the job ends or a signal comes."""

from pathlib import Path

from rollfleet.cli.stop_signal import StopSignal
from rollfleet.recording.recorder import Recorder


def main(recorder: Recorder, folder: Path) -> int:
    """Wait until the job ends. A second signal ends the program at once; batches of the last seconds are lost.

    Returns:
        0: the job has ended. 130, 143: Ctrl-C or SIGTERM stopped it; every batch that had arrived is written.

    Raises:
        RollfleetError: The recording could not go on.
        OSError: A file could not be written.
    """

    def end_at_once() -> None:
        raise SystemExit(stop.exit_code)

    stop = StopSignal(lambda: None, end_at_once)  # before it, a signal ends the program
    with recorder:
        print(f"recording {recorder.job.key} to {folder}", flush=True)
        while not (stop.number or recorder.wait(0.2)):
            pass
    counts = recorder.counts()
    print(
        f"recorded {counts.batches:,} batches, {counts.frames:,} frames, {counts.bytes / 1e6:,.1f} MB; "
        f"{counts.missed:,} missed, {counts.corrupt:,} unreadable"
    )
    return stop.exit_code

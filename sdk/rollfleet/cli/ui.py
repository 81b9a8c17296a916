"""The page on this machine: of a run that goes on, and of saved ones."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from rollfleet.cli.live_run import LiveRun
from rollfleet.cli.local import LocalRun, run
from rollfleet_ui.saved_runs import SavedRuns
from rollfleet_ui.server import page, served
from rollfleet_ui.token_guard import TokenGuard

RUNS: Final = Path("runs")
SAVING: Final = "`rollfleet run --ui` and `rollfleet.track(collector, to='page')` save runs"


async def run_with_page(local: LocalRun, *, port: int) -> int:
    """Run a job, serve its page on a port (0: a free one), and save it into a folder of `runs`.

    Returns:
        The exit code of the run.

    Raises:
        RollfleetError: NATS could not be started or reached.
        OSError: The port is taken.
    """
    live, guard = LiveRun(local.job, RUNS, local.display.error), TokenGuard()
    async with served(page(live, guard), port=port) as chosen:
        local.display.event(f"page: {guard.url(chosen)}")
        try:
            return await run(replace(local, live=live))
        finally:
            with suppress(PermissionError):  # `runs` is another user's
                if live.folder.exists():
                    local.display.event(f"saved to {live.folder}; to see it: rollfleet ui {RUNS}")


async def show_saved(folder: Path, *, port: int, show: Callable[[str], None]) -> int:
    """Serve the page of all runs in a folder until cancelled, on a port (0: a free one); `show` takes its URL.

    Raises:
        OSError: The port is taken.
    """
    runs, guard = SavedRuns(folder), TokenGuard()
    count = len(runs.jobs())
    hint = "" if count else f" ({SAVING})"
    async with served(page(runs, guard), port=port) as chosen:
        show(f"page of {count} saved run{'s' if count != 1 else ''}{hint}: {guard.url(chosen)}")
        await asyncio.Event().wait()
    return 0

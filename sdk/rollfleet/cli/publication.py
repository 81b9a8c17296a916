"""A job on a NATS server: published, published again if the server loses it, and deleted at the end."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Final

from nats.errors import Error as NatsError

from rollfleet.cli.display import Display
from rollfleet.cli.watch import JobWatch
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_state
from rollfleet.nats.streams import deprovision, own
from rollfleet.system.background import in_background
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase

DELETE_S: Final = 2.0
LOOK_S: Final = 1.0
COMPLETE_GRACE_S: Final = 5.0
"""For workers to leave by themselves when the job is complete."""


@asynccontextmanager
async def published(job: CollectorJob, address: Address, *, delete: bool) -> AsyncIterator[Link]:
    """Publish a job until the block ends; with `delete`, delete it then.

    `address` may create the job's stream.

    Yields:
        The connection of the job's owner.

    Raises:
        RollfleetError: NATS cannot be reached, or has no space for the job.
    """
    # Unlike with `asyncio.to_thread`, a run that is cancelled does not wait for the thread.
    link = await asyncio.wrap_future(in_background(lambda: Link(address, role=None), "rollfleet-connect"))
    try:
        await asyncio.wrap_future(link.spawn(_publish(link, job)))
        yield link
    finally:
        await finish(asyncio.to_thread(_leave, link, delete))


async def keep(job: CollectorJob, address: Address, display: Display) -> int:
    """Publish a job, show how its workers and its learner join, and delete it once its learner has completed it.

    Returns:
        The exit code, 0.

    Raises:
        RollfleetError: NATS cannot be reached, or has no space for the job.
        asyncio.CancelledError: The call was cancelled; the job is deleted.
    """
    async with published(job, address, delete=True) as link:
        url, key, workers = re.sub(r"//[^/@,]*@", "//", address.url), job.key, job.spec.workers
        display.event(f"{key} is published on {url} until its learner has completed it, or Ctrl-C")
        display.event(f"workers, 0 to {workers - 1}: rollfleet worker --nats {url} --job {key} --index 0")
        display.event(f'learner: rollfleet.connect("{key}", policy, address="{url}")')
        watch = JobWatch(job)
        watch.listen(link)
        with display.showing(watch):
            await asyncio.wrap_future(link.spawn(_until_complete(link)))
            await asyncio.sleep(COMPLETE_GRACE_S)
    return 0


async def _publish(link: Link, job: CollectorJob) -> None:
    if await _is_complete(link):  # an earlier job of this name: its workers would leave at once
        await deprovision(link)
    await own(link, job)


async def _until_complete(link: Link) -> None:
    while True:
        if await _is_complete(link):
            return
        await asyncio.sleep(LOOK_S)


async def _is_complete(link: Link) -> bool:
    try:
        control = await read_state(link, link.subjects.control, Control)
    except (NatsError, TimeoutError):  # it is not published yet, or the server is away
        return False
    return control is not None and control.phase is LearnerPhase.COMPLETE


def _leave(link: Link, delete: bool) -> None:
    if delete:
        with suppress(Exception):  # the server may be gone already
            link.call(deprovision(link), timeout_s=DELETE_S)
    link.close(flush_timeout_s=1.0)


async def finish(cleaning: Awaitable[object]) -> None:
    """Finish a clean-up that a cancellation must not interrupt; raise the cancellation afterwards."""
    task = asyncio.ensure_future(cleaning)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise

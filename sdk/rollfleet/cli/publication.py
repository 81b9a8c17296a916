"""A job on a NATS server: this process is its owner, which its other processes ask for it."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Final

from rollfleet.cli.display import Display
from rollfleet.cli.watch import JobWatch
from rollfleet.nats.job_source import JobOwner
from rollfleet.nats.link import Link
from rollfleet.system.background import in_background
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase

DELETE_S: Final = 2.0
COMPLETE_GRACE_S: Final = 5.0
"""For workers to leave by themselves when the job is complete."""


@asynccontextmanager
async def published(job: CollectorJob, address: Address, *, delete: bool) -> AsyncIterator[Link]:
    """Publish a job until the block ends; with `delete`, its processes elsewhere end then.

    Yields:
        The connection of the job's owner.

    Raises:
        RollfleetError: NATS cannot be reached.
    """
    # Unlike with `asyncio.to_thread`, a run that is cancelled does not wait for the thread.
    link = await asyncio.wrap_future(in_background(lambda: Link(address, role=None), "rollfleet-connect"))
    owner = JobOwner(link, _identified(job))
    try:
        await asyncio.wrap_future(link.spawn(owner.start()))
        yield link
    finally:
        await finish(asyncio.to_thread(_leave, link, owner, delete))


def _identified(job: CollectorJob) -> CollectorJob:
    """Return a job that no earlier one of its name is mistaken for."""
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": str(uuid.uuid4())})})


async def keep(job: CollectorJob, address: Address, display: Display) -> int:
    """Publish a job, show how its workers and its learner join, and delete it once its learner has completed it.

    Returns:
        The exit code, 0.

    Raises:
        RollfleetError: NATS cannot be reached.
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


async def _until_complete(link: Link) -> None:
    complete, newest = asyncio.Event(), 0

    def hear(control: Control) -> None:
        nonlocal newest
        newest = max(newest, control.session)
        if control.phase is LearnerPhase.COMPLETE and control.session == newest:  # of no learner that was replaced
            complete.set()

    await link.listen(link.subjects.control, Control, hear)
    await complete.wait()


def _leave(link: Link, owner: JobOwner, delete: bool) -> None:
    if delete:
        with suppress(Exception):  # the server may be gone already
            link.call(owner.delete(), timeout_s=DELETE_S)
    link.close(flush_timeout_s=1.0)


async def finish(cleaning: Awaitable[object]) -> None:
    """Finish a clean-up that a cancellation must not interrupt; raise the cancellation afterwards."""
    task = asyncio.ensure_future(cleaning)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise

"""Connects evaluators and recorders to a job: they see all of its batches, and take none from its learner."""

from pathlib import Path

import torch

from rollfleet.errors import JobInvalid
from rollfleet.learner.options import device_of
from rollfleet.nats.open_link import open_link
from rollfleet.nats.state import read_job
from rollfleet.recording.observer import MEMORY_BYTES, Observer, check_may_observe
from rollfleet.recording.recorder import SEGMENT_BYTES, Recorder
from rollfleet_api.job import CollectorJob


def observe(
    job: str | CollectorJob | None = None,
    *,
    address: str | None = None,
    credentials: str | Path | None = None,
    device: str | torch.device | None = None,
    memory_bytes: int = MEMORY_BYTES,
    timeout_s: float = 60.0,
) -> Observer:
    """See every batch of a job, live, beside its learner: for an evaluator.

    It takes nothing away from the learner, and nobody waits for it. Whatever is not said by argument is found as
    `rollfleet.connect` finds it.

    Args:
        job: Its name, `namespace/name`, or the job itself. None: what the environment says.
        address: The NATS server's URL.
        credentials: A NATS credentials file, of the job's learner.
        device: Where batches are put. None: they stay in CPU memory.
        memory_bytes: Batches that wait to be asked for have at most so many, or are a single one; what comes besides
            is left out, and counted as `missed`.
        timeout_s: How long to wait for NATS, and for the job to be there.

    Returns:
        An iterator over batches, TensorDict `[envs, T]`, one of one worker at a time in both modes; also a context
        manager. It ends with the job.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials.
        JobInvalid: No job can have that name, or there is no such device.
        JobNotFound: The job was not there in time.
    """
    if memory_bytes < 1:
        raise JobInvalid(f"`memory_bytes` is 1 or more, not {memory_bytes}")
    there = None if device is None else device_of(device, "device")
    link = open_link(job, address=address, credentials=credentials, timeout_s=timeout_s)
    try:
        link.call(check_may_observe(link), timeout_s=timeout_s)
        known = link.call(read_job(link, timeout_s=timeout_s))
        return Observer(link, known, memory_bytes=memory_bytes, device=there)
    except BaseException:
        link.close()
        raise


def record(
    job: str | CollectorJob | None = None,
    folder: str | Path = "recording",
    *,
    address: str | None = None,
    credentials: str | Path | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    memory_bytes: int = MEMORY_BYTES,
    timeout_s: float = 60.0,
) -> Recorder:
    """Write every batch of a job to disk, in the background, beside its learner; `Recording` reads them.

    Args:
        job: See `observe`, as for all that is not here.
        folder: Where they go. What is there of the same job stays, and is added to.
        address: The NATS server's URL.
        credentials: A NATS credentials file, of the job's learner.
        segment_bytes: One file has at most so many, or a single batch. It is on the disk for good once it is full or
            closed; before, it survives the end of this process, not that of the machine.
        memory_bytes: Of batches that wait to be written.
        timeout_s: How long to wait for NATS, and for the job to be there.

    Returns:
        A recorder; also a context manager. It ends with the job.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials.
        JobInvalid: No job can have that name, another recorder writes into the folder, or it holds another job's.
        JobNotFound: The job was not there in time.
        OSError: The folder cannot be written.
    """
    if segment_bytes < 1:
        raise JobInvalid(f"`segment_bytes` is 1 or more, not {segment_bytes}")
    observer = observe(job, address=address, credentials=credentials, memory_bytes=memory_bytes, timeout_s=timeout_s)
    try:
        return Recorder(observer, Path(folder), segment_bytes=segment_bytes)
    except BaseException:
        observer.close()
        raise

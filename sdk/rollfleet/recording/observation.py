"""Connects evaluators and recorders to a job: they receive all of its batches, and take none from its learner."""

from pathlib import Path

import torch

from rollfleet.arguments import path_of, whole_number
from rollfleet.nats.opening import open_link
from rollfleet.nats.state import read_job
from rollfleet.recording.observer import MEMORY_BYTES, Observer, check_may_observe
from rollfleet.recording.recorder import SEGMENT_BYTES, Recorder
from rollfleet.system.devices import device_of
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
    """Observe every batch of a job, live, beside its learner: for an evaluator.

    It takes no batch from the learner, and no one waits for it. Missing arguments are found as `rollfleet.connect`
    finds them.

    Args:
        job: Its name, `namespace/name`, or the job itself. None: read from the environment.
        address: The NATS server's URL.
        credentials: The NATS credentials file of the job's learner.
        device: The device of batches. None: CPU memory.
        memory_bytes: Bound of the batches that wait for the reader; a single larger batch is kept. Batches that do not
            fit are dropped, and counted as `missed`.
        timeout_s: How long to wait for NATS, and for the job.

    Returns:
        An iterator over batches, TensorDict `[envs, T]`, each of one worker in both modes; also a context manager. It
        ends with the job.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials.
        JobInvalid: The name is not valid for a job, or the device does not exist.
        JobNotFound: The job did not appear in time.

    Example:
        >>> with rollfleet.observe("cartpole", address="nats://localhost:4222") as batches:  # doctest: +SKIP
        ...     print(next(batches).batch_size)
    """
    memory_bytes = whole_number(memory_bytes, "memory_bytes", least=1)
    target = None if device is None else device_of(device, "device")
    link = open_link(job, address=address, credentials=credentials, timeout_s=timeout_s)
    try:
        link.call(check_may_observe(link), timeout_s=timeout_s)
        known = link.call(read_job(link, timeout_s=timeout_s))
        return Observer(link, known, memory_bytes=memory_bytes, device=target)
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
    """Write every batch of a job to disk, in the background, beside its learner. `Recording` reads them.

    Args:
        job: Its name, `namespace/name`, or the job itself. None: read from the environment.
        folder: The recording's folder. Batches are added to an earlier recording of the same job.
        address: The NATS server's URL.
        credentials: The NATS credentials file of the job's learner.
        segment_bytes: Size of one file at most; a single larger batch has its own. A full or closed file survives the
            machine's end; before that, it survives only this process's end.
        memory_bytes: Bound of the batches that wait to be written.
        timeout_s: How long to wait for NATS, and for the job.

    Returns:
        A recorder; also a context manager. It ends with the job.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials.
        JobInvalid: The name is not valid for a job, another recorder writes into the folder, or it holds batches of
            another job.
        JobNotFound: The job did not appear in time.
        OSError: The folder cannot be written.

    Example:
        >>> with rollfleet.record("cartpole", "recording") as recorder:  # doctest: +SKIP
        ...     recorder.wait(timeout_s=60)
    """
    folder, segment_bytes = path_of(folder, "folder"), whole_number(segment_bytes, "segment_bytes", least=1)
    observer = observe(job, address=address, credentials=credentials, memory_bytes=memory_bytes, timeout_s=timeout_s)
    try:
        return Recorder(observer, folder, segment_bytes=segment_bytes)
    except BaseException:
        observer.close()
        raise

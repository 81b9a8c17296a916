"""Connects a learner to a job."""

from pathlib import Path
from typing import Any, Unpack

import torch

from rollfleet.collector import Collector
from rollfleet.errors import JobInvalid
from rollfleet.learner.options import LearnerOptions, check_learner_options, check_names, device_of
from rollfleet.nats.open_link import open_link
from rollfleet.nats.state import read_job
from rollfleet.nats.transport import NatsTransport
from rollfleet_api.job import CollectorJob
from rollfleet_api.ranks import Rank


def connect(
    job: str | CollectorJob | None = None,
    policy: Any = None,
    *,
    address: str | None = None,
    credentials: str | Path | None = None,
    device: str | torch.device | None = None,
    no_cuda_sync: bool = False,
    timeout_s: float = 60.0,
    rank: int = 0,
    ranks: int = 1,
    **options: Unpack[LearnerOptions],
) -> Collector:
    """Become the learner of a job: iterate over its batches, send its workers weights.

    Whatever is not said by argument is read from the environment (`ROLLFLEET_JOB`, `ROLLFLEET_NATS_URL`,
    `ROLLFLEET_NATS_CREDENTIALS`), or from the files that the operator mounts into a learner's pod. A learner that was
    connected before is told that it was replaced. As the first process of a container it ends at SIGTERM from now on,
    by SystemExit.

    Several processes of one learner, such as those of torch.distributed, share a job: each connects with its `rank`,
    and each batch goes to one of them, worker `w`'s to rank `w % ranks`. Rank 0 alone sends weights, opens rounds and
    completes the job; `update_policy_weights_`, `set_seed`, `pause` and `shutdown` of the others send nothing.

    Args:
        job: Its name, `namespace/name`, or the job itself. None: what the environment says.
        policy: What `weights.interval` broadcasts: a module, or a dict or TensorDict of tensors. Its parameters and
            buffers are named as in the workers' policy.
        address: The NATS server's URL.
        credentials: A NATS credentials file.
        device: Where batches are put, while the learner trains. None: they stay in CPU memory.
        no_cuda_sync: Do not wait until they are there.
        timeout_s: How long to wait for NATS, and for the job to be there.
        rank: Which of the learner's processes this is, from 0. It replaces the one of the same rank.
        ranks: How many there are. All of a learner that had another number are replaced.
        **options: `split_trajs`, `postproc`, `replay_buffer`, `weight_scheme`, `acknowledge`: see `Collector`.

    Returns:
        An iterator over batches, TensorDict `[envs, T]`; also a context manager.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials.
        JobInvalid: No job can have that name, there is no such device, none for `no_cuda_sync`, no such rank, or there
            are more ranks than workers.
        JobNotFound: The job was not there in time.
        WeightMismatch: `policy` has weights in a form that cannot be sent.
        TypeError: There is no such keyword.
    """
    check_names(options, LearnerOptions, "rollfleet.connect")
    check_learner_options(options)
    there = None if device is None else device_of(device, "device")
    if no_cuda_sync and there is None:
        raise JobInvalid("`no_cuda_sync` is about copies to `device`, and there is none; name a device, or remove it")
    try:
        place = Rank(rank, ranks)
    except ValueError as error:
        raise JobInvalid(str(error)) from error
    link = open_link(job, address=address, credentials=credentials, timeout_s=timeout_s)
    try:
        known = link.call(read_job(link, timeout_s=timeout_s))
        if ranks > (workers := known.spec.workers):
            raise JobInvalid(
                f"`ranks` is {ranks}, and {known.key} has {workers} worker{'s' * (workers > 1)}, each of which sends "
                f"to one rank: write `ranks={workers}` or fewer, or give the job `workers: {ranks}` or more"
            )
        transport = NatsTransport(link, known, device=there, no_cuda_sync=no_cuda_sync, rank=place)
        return Collector.over(transport, known, policy, **options)
    except BaseException:
        link.close()
        raise

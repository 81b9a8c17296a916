"""Connects a learner to a job."""

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rollfleet.arguments import plain
from rollfleet.collector import Collector
from rollfleet.envs.factory import make_one
from rollfleet.errors import JobInvalid, WorkerFailed
from rollfleet.learner.keywords import hints_names
from rollfleet.learner.options import Extends, Options
from rollfleet.nats.job_source import read_job
from rollfleet.nats.opening import open_link
from rollfleet.nats.transport import NatsTransport
from rollfleet.policies.lazy import initialise_as_learner
from rollfleet.system.devices import Device
from rollfleet_api.address import SHOWS_FAILURES
from rollfleet_api.job import CollectorJob
from rollfleet_api.ranks import Rank

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rollfleet.schemes import WeightScheme


@hints_names("rollfleet.connect")
def connect(
    job: str | CollectorJob | None = None,
    policy: Any = None,
    *,
    # The server
    address: str | None = None,
    credentials: str | Path | None = None,
    timeout_s: float = 60.0,
    # The learner's processes
    rank: int = 0,
    ranks: int = 1,
    # Batches
    postproc: "Callable[[TensorDict], Any] | None" = None,
    replay_buffer: Extends | None = None,
    acknowledge: str = "auto",
    # Weights
    weight_scheme: "WeightScheme | None" = None,
    # Devices
    device: Device | None = None,
    no_cuda_sync: bool = False,
) -> Collector:
    """Become the learner of a job: iterate over its batches, and send weights to its workers.

    Arguments that are not given come from environment variables (`ROLLFLEET_JOB`, `ROLLFLEET_NATS_URL`,
    `ROLLFLEET_NATS_CREDENTIALS`), or from the files that the operator mounts into a learner's pod. Outside of pods, a
    kubeconfig suffices: the learner's Secret has the address, and NATS is reached through the API server if it does not
    answer. A learner that is still connected raises `LearnerReplaced`. As the first process of a container, the program
    ends by SystemExit at SIGTERM from now on.

    Several processes of one learner, such as those of torch.distributed, share a job. Each connects with its `rank`,
    and gets the batches of the workers `w` with `w % ranks == rank`. Only rank 0 sends weights, opens rounds and
    completes the job: `update_policy_weights_`, `set_seed`, `pause` and `shutdown` send nothing on other ranks.

    Example:
        >>> with rollfleet.connect("default/cartpole", policy) as collector:  # doctest: +SKIP
        ...     for batch in collector:
        ...         train(policy, batch)

    Args:
        job: The job's name, `namespace/name`, or the job itself. None: the name in the environment. A name without a
            namespace gets that of the kubeconfig's context, or with an address that of the environment's job, else
            `default`.
        policy: The policy that `weights.interval` broadcasts: a module, or a dict or TensorDict of tensors. Parameters
            and buffers have the names of the workers' policy. None: no policy.

        address: URL of the NATS server. None: the address in the environment, or else that of the kubeconfig's cluster.
        credentials: A NATS credentials file. None: the file in the environment, or no credentials.
        timeout_s: How long to wait for NATS, and for the job to exist, in seconds.

        rank: The rank of this process, from 0. It replaces an earlier process of the same rank.
        ranks: The number of the learner's processes. It replaces all processes of a learner with another number.

        postproc: A function of each batch. The iterator yields its result.
        replay_buffer: A buffer whose `extend(frames)` gets the frames `[frames]` of each batch, after `postproc`. The
            iterator then yields None.
        acknowledge: "auto": a batch is acknowledged once it is yielded. "manual": once you call `ack()`.

        weight_scheme: Which weights travel, and in which form. None: the scheme that the job names.

        device: The device of batches; they are copied while the learner trains. None: they stay in CPU memory.
        no_cuda_sync: Do not wait for copies to `device`.

    Returns:
        An iterator over batches, TensorDict `[envs, T]`, which is also a context manager.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials, or they are for another
            job.
        ClusterError: The kubeconfig's cluster refused a request, or cannot be reached.
        JobInvalid: The job's name, the credentials file, a device, a rank or another value is not valid,
            `no_cuda_sync` has no device, there are more ranks than workers, or several ranks and stragglers.
        JobNotFound: The job did not exist in time.
        PolicyInvalid: `policy` has lazy parameters, which cannot be initialised here.
        WeightMismatch: `policy` has weights in a form that cannot be sent.
        TypeError: A keyword is unknown. The message has the one to write.
    """
    options = Options.of(locals(), connect)  # raises before anything is connected
    try:
        own_rank = Rank(plain(rank), ranks := plain(ranks))
    except ValueError as error:
        raise JobInvalid(str(error)) from error
    link = open_link(job, address=address, credentials=credentials, timeout_s=timeout_s)
    if os.environ.get(SHOWS_FAILURES):
        _leave_failures_to_the_run()
    try:
        known = link.call(read_job(link, timeout_s=timeout_s))
        if not known.spec.workers:
            raise JobInvalid(
                f"{known.key} has no workers; step its environments: `make_vec(..., servers={known.key!r})`"
            )
        if ranks > (workers := known.spec.workers):
            raise JobInvalid(
                f"`ranks` is {ranks}, but {known.key} has {workers} worker{'s' * (workers > 1)}, and each worker sends "
                f"to one rank: write `ranks={workers}` or fewer, or give the job `workers: {ranks}` or more"
            )
        if (scale := known.spec.autoscale) and ranks > scale.min_workers:
            raise JobInvalid(
                f"`ranks` is {ranks}, but {known.key} may be scaled to {scale.min_workers} workers, and each rank "
                f"needs one: give the job `autoscale.minWorkers: {ranks}` or more"
            )
        if ranks > 1 and known.spec.stragglers.threshold < 1:
            raise JobInvalid(
                f"{known.key} has `stragglers.threshold` {known.spec.stragglers.threshold:g}, which only a learner of "
                "one process can follow: remove it from the job, or connect with `ranks=1`"
            )
        initialise_as_learner(policy, partial(make_one, known.spec.env))
        transport = NatsTransport(
            link, known, device=options["device"], no_cuda_sync=options["no_cuda_sync"], rank=own_rank
        )
        return Collector.over(
            transport,
            known,
            policy,
            postproc=postproc,
            replay_buffer=replay_buffer,
            weight_scheme=weight_scheme,
            acknowledge=acknowledge,
        )
    except BaseException:
        link.close()
        raise


def _leave_failures_to_the_run() -> None:
    """Print no traceback of `WorkerFailed`, and log no worker's problem: `rollfleet run` has shown the worker's own."""
    logging.getLogger("rollfleet.nats.heartbeats").setLevel(logging.ERROR)
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, WorkerFailed):
            usual(kind, error, trace)

    sys.excepthook = hook

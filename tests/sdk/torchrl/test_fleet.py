"""A collector of `rollfleet.torchrl` as the learner of a running job."""

from typing import Any

import pytest
import torch
from tests.job_server import Server, join_all
from tests.sdk.torchrl import programs
from tests.sdk.torchrl.programs import linear, running

from rollfleet.errors import JobInvalid
from rollfleet.torchrl import MultiSyncDataCollector
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL


@pytest.mark.parametrize(
    ("envs", "joined", "shape"),
    [(2, "Stack", (2, 2, 25)), (2, "Envs", (4, 25)), (2, "Time", (2, 50)), (1, "Envs", (100,))],
)
def test_a_jobs_batches_have_torchrls_shape_until_the_job_ends(
    server: Server, envs: int, joined: str, shape: tuple[int, ...]
) -> None:
    make = "pendulum" if envs == 1 else "two_pendulums"
    job = server.own(
        mode="Sync",
        workers=2,
        env={"entrypoint": f"{programs.__name__}:{make}", "numEnvs": envs},
        policy={"entrypoint": f"{programs.__name__}:make_policy"},
        collect={"framesPerBatch": 100, "totalFrames": 400, "catResults": joined},
    )
    workers = [server.start_worker(job, index) for index in range(2)]
    policy = linear()
    collector: Any = MultiSyncDataCollector(
        [getattr(programs, make)] * 2,
        policy,
        frames_per_batch=100,
        total_frames=-1,
        update_at_each_batch=True,
        job=job.key,
        nats=server.url(Role.LEARNER),
    )
    shapes = []
    with running(collector):
        for batch in collector:
            shapes.append(tuple(batch.shape))
            torch.testing.assert_close(policy.module(batch["observation"]), batch["action"])
            with torch.no_grad():
                policy.module.bias += 1
    assert shapes == [shape] * 4
    join_all(workers)


def of_seven_frames(server: Server) -> CollectorJob:
    return server.own(
        mode="Sync",
        workers=1,
        env={"entrypoint": f"{programs.__name__}:pendulum"},
        policy={"entrypoint": f"{programs.__name__}:make_policy"},
        collect={"framesPerBatch": 7},
    )


def test_another_frames_per_batch_than_the_jobs_is_refused(server: Server) -> None:
    keywords: Any = {"job": of_seven_frames(server).key, "nats": server.url(Role.LEARNER)}
    with pytest.raises(JobInvalid, match="the job's batches have 7; write 7"):
        MultiSyncDataCollector([programs.pendulum], linear(), frames_per_batch=1000, **keywords)


def test_after_an_error_in_a_loop_the_jobs_worker_waits_for_the_next_learner(server: Server) -> None:
    job = of_seven_frames(server)
    worker = server.start_worker(job, 0)
    keywords: Any = {"frames_per_batch": 7, "job": job.key, "nats": server.url(Role.LEARNER)}
    failing: Any = MultiSyncDataCollector([programs.pendulum], linear(), postproc=lambda batch: 1 / 0, **keywords)
    with pytest.raises(ZeroDivisionError):
        next(iter(failing))
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)
    following: Any = MultiSyncDataCollector([programs.pendulum], linear(), **keywords)
    with running(following) as collector:
        assert next(iter(collector)).shape == (7,)
    join_all([worker])


def test_seeds_and_resets_reach_the_environments_of_a_job(server: Server) -> None:
    job = of_seven_frames(server)
    worker = server.start_worker(job, 0)
    keywords: Any = {"frames_per_batch": 7, "job": job.key, "nats": server.url(Role.LEARNER)}
    collector: Any = MultiSyncDataCollector([programs.pendulum], linear(), **keywords)
    firsts = []
    with running(collector):
        iterator = iter(collector)
        for seed in (5, 5, 6, None, None):
            collector.reset() if seed is None else collector.set_seed(seed)
            firsts.append(tuple(next(iterator)["observation"][0].tolist()))
    assert firsts[0] == firsts[1]
    assert len(set(firsts)) == 4
    join_all([worker])

"""A collector of `rollfleet.torchrl` as the learner of a running job."""

from typing import Any

import pytest
import torch
from tests.job_server import Server, join_all
from tests.sdk.torchrl import programs
from tests.sdk.torchrl.programs import linear, running

from rollfleet.torchrl import MultiSyncDataCollector
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
    job = server.provision(
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

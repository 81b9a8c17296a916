"""The learner of docs/consumers.md: two processes under torchrun that train one policy with DDP."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.job_server import Server, join_all
from tests.pages import blocks
from tests.running import output_of

from rollfleet_api.address import Address
from rollfleet_api.permissions import Role

RANKS, WORKERS = 2, 4
JOB: dict[str, Any] = {"workers": WORKERS, "env": {"id": "CartPole-v1", "numEnvs": 2}}


def under_torchrun(learner: str, folder: Path, address: Address) -> str:
    """Return its output."""
    (folder / "learner.py").write_text(learner)
    # Not the machine's name, which may not resolve.
    here = ["--local-addr=127.0.0.1", f"--nproc-per-node={RANKS}"]
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", *here, "learner.py")
    environ = os.environ | address.variables() | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return output_of(*command, cwd=folder, env=environ, timeout=110)


@pytest.mark.slow
def test_the_documented_learner_trains_under_torchrun(repository: Path, tmp_path: Path, server: Server) -> None:
    rounds = 6
    collect = {"framesPerBatch": 64, "totalFrames": 64 * rounds}
    workers = server.start_workers(**JOB | {"mode": "Sync", "collect": collect})
    learner = blocks((repository / "docs" / "consumers.md").read_text(), "python")[0]
    written = under_torchrun(learner, tmp_path, server.address(Role.LEARNER))
    for rank in range(RANKS):
        # Rank 0 may have sent one more version before it knew that the others had received the last batch.
        frames = 64 * rounds // RANKS
        # Both write lines and line ends separately to one pipe, so that their outputs may mix.
        report = f"rank {rank}: {rounds} batches, {frames} frames, version ({rounds}|{rounds + 1})(?![0-9])"
        assert re.search(report, written)
    join_all(workers)


@pytest.mark.slow
def test_in_mode_async_ranks_under_join_may_end_at_different_steps(
    repository: Path, tmp_path: Path, server: Server
) -> None:
    workers = server.start_workers(**JOB | {"mode": "Async", "collect": {"framesPerBatch": 16, "totalFrames": 16 * 20}})
    page = (repository / "docs" / "consumers.md").read_text()
    learner, joining = blocks(page, "python")[0], "with Join([loss]), rollfleet.connect("
    assert "with Join([loss]): ..." in page
    learner = learner.replace("with rollfleet.connect(", joining)
    learner = "from torch.distributed.algorithms.join import Join\n" + learner
    assert joining in learner
    written = under_torchrun(learner, tmp_path, server.address(Role.LEARNER))
    frames = [int(each) for each in re.findall(r"rank \d: \d+ batches, (\d+) frames", written)]
    assert len(frames) == RANKS
    assert sum(frames) >= 16 * 20
    join_all(workers)

"""`rollfleet run` with healthy workers."""

import json
import re

import pytest
from tests.job_server import Server
from tests.sdk.cli.program import Workplace

from rollfleet_api.address import CA
from rollfleet_api.publication import DELETED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "mode", "version"), [({"random": {}}, "Async", 0), ({"mlp": {"hidden": [8]}}, "Sync", 1)]
)
def test_without_a_learner_batches_are_counted_until_the_total(
    workplace: Workplace, policy: dict[str, object], mode: str, version: int
) -> None:
    workplace.write_job(policy=policy, mode=mode, template={"metadata": {"labels": {"team": "a"}}})
    program = workplace.start("run", "job.yaml", environ={CA: "/no/such/ca.crt"})  # of another server
    assert program.wait() == 0
    first, second, *_, last = program.output.splitlines()
    assert second.startswith("`template` is about pods: its variables, volumes and containers have no effect")
    assert first.startswith("no learner: batches are counted, and nothing is trained; to train, add `--learner ")
    assert last.startswith("test: 640 frames (")
    assert "/s on average), 10 batches, mean return " in last
    assert f", version {version}, lag 0, dropped 0; workers: 0 Complete" in last


@pytest.mark.slow
def test_a_learner_gets_its_arguments_and_the_options_of_the_command_line(workplace: Workplace) -> None:
    workplace.write_job(workers=1)
    workplace.write(
        "learner.py",
        """
        import sys
        import rollfleet

        with rollfleet.connect() as collector:
            print("arguments", sys.argv[1:])
            print("workers", collector.job.spec.workers, "seed", collector.job.spec.collect.seed)
            workers = {int(id) >> 47 for batch in collector for id in batch["collector", "traj_ids"].flatten()}
            print("frames", collector.frames, "from workers", sorted(workers), file=sys.stderr)
        """,
    )
    program = workplace.run("--learner", "learner.py", "--workers", "2", "--seed", "7", "--", "--rate", "0.5", "-v")
    assert program.wait() == 0
    lines = program.output.splitlines()
    assert "arguments ['--rate', '0.5', '-v']" in lines
    assert "workers 2 seed 7" in lines
    assert "frames 640 from workers [0, 1]" in lines


def test_a_learner_that_raises_ends_the_run_and_its_end_is_named(workplace: Workplace) -> None:
    workplace.write_job()
    workplace.write("learner.py", "raise LookupError('no idea')")
    program = workplace.run("--learner", "learner.py")
    assert program.wait() == 1
    assert "Traceback (most recent call last):" in program.output
    assert "learner ended: exit code 1; its last line: LookupError: no idea" in program.output


def test_a_learner_that_is_killed_starts_again_and_the_run_goes_on(workplace: Workplace) -> None:
    workplace.write_job(failure={"maxRestartsPerWorker": 1})
    workplace.write(
        "learner.py",
        """
        import os, signal
        import rollfleet

        with rollfleet.connect() as collector:
            if not os.path.exists("killed"):
                next(collector)
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            print("frames of the second life:", sum(batch.numel() for batch in collector))
        """,
    )
    program = workplace.run("--ui", "--learner", "learner.py")
    assert program.wait() == 0
    assert re.search(r"learner ended: killed by SIGKILL[^$]+learner restarts \(1 of 1\)", program.output)
    assert re.search(r"frames of the second life: [1-9]", program.output)
    (saved,) = [json.loads(file.read_text()) for file in workplace.folder.glob("runs/test/*/run.json")]
    assert {"LearnerEnded", "Complete"} <= {each["kind"] for each in saved["timeline"]}


@pytest.mark.slow
def test_an_external_nats_server_is_used_and_left_as_it_was(workplace: Workplace, server: Server) -> None:
    workplace.write_job()
    workplace.write(
        "learner.py",
        """
        import rollfleet

        with rollfleet.connect() as collector:
            next(collector)
            print("a batch came")
            list(collector)
        """,
    )
    program = workplace.run("--nats", server.url(), "--learner", "learner.py")
    ended = server.heard(server.subjects.spec, DELETED.__eq__)
    program.wait_for("a batch came")
    assert program.wait() == 0
    assert ended.wait(10)

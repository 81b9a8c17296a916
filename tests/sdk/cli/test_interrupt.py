"""Every way to stop `rollfleet run` leaves nothing behind."""

import signal
import socket
import time

import pytest
from tests.sdk.cli.program import Workplace

ENDLESS = {"framesPerBatch": 64, "totalFrames": 0}


def assert_refused(port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.slow
def test_the_terminal_shows_a_live_table_until_ctrl_c_is_pressed(workplace: Workplace) -> None:
    workplace.write_job(workers=2, policy={"mlp": {"hidden": [8]}}, collect=ENDLESS)
    workplace.write(
        "learner.py",
        """
        import rollfleet.cli.default_learner

        print("a line of the learner, [not] markup", flush=True)
        rollfleet.cli.default_learner.main()
        """,
    )
    program = workplace.run("--learner", "learner.py", terminal=True)
    port = workplace.wait_for_nats_port()
    program.wait_for(r"a line of the learner, \[not\] markup\n")
    program.wait_for(r"test +[\d,]+ frames +[1-9][\d,]*/s +[1-9][\d,]* batches +mean return \d+\.\d +version 1 +lag 0")
    program.wait_for(r"worker +state +version +frames +frames/s +mean return +starts *\n")
    program.wait_for(r"(?s)0 +(Collecting|WaitingForLearner) +1 .* 1 *\n +1 +(Collecting|WaitingForLearner) +1 .* 1 ")
    program.press_ctrl_c()
    assert program.wait() == 130
    assert "Traceback" not in program.output
    assert_refused(port)
    workplace.assert_nothing_is_left()


@pytest.mark.slow
def test_sigterm_stops_all_processes_and_environments(workplace: Workplace) -> None:
    workplace.write_job(env={"id": "CartPole-v1", "numEnvs": 2, "vectorization": "Async"}, collect=ENDLESS)
    program = workplace.run()
    port = workplace.wait_for_nats_port()
    program.wait_for(r"test: [1-9][\d,]* frames")
    assert len(program.processes()) >= 6  # itself, NATS, the learner, the worker, its two environments
    assert program.stop_by(signal.SIGTERM) == 143
    assert_refused(port)
    workplace.assert_nothing_is_left()


@pytest.mark.parametrize("moment", ["at once", "NATS", "children"])
def test_a_signal_at_the_start_stops_all(workplace: Workplace, moment: str) -> None:
    workplace.write_job(workers=2)
    workplace.write("learner.py", "print('the learner runs', flush=True)\nimport time\ntime.sleep(600)\n")
    program = workplace.run("--learner", "learner.py")
    if moment != "at once":
        port = workplace.wait_for_nats_port()
    if moment == "children":
        program.wait_for("the learner runs")
    assert program.end_by(signal.SIGINT) != 0  # at once, Python itself ends with a code of its own
    if moment != "at once":
        assert program.process.returncode == 130
        assert_refused(port)
    workplace.assert_nothing_is_left()


def test_more_signals_do_not_interrupt_the_clean_up(workplace: Workplace) -> None:
    workplace.write_job()
    workplace.write(
        "learner.py",
        """
        import signal, sys, time

        def save(*_):
            print("the learner is saving", flush=True)
            time.sleep(0.5)
            sys.exit("the learner has saved its work")

        signal.signal(signal.SIGTERM, save)
        print("the learner runs", flush=True)
        while True:
            time.sleep(600)
        """,
    )
    program = workplace.run("--learner", "learner.py")
    port = workplace.wait_for_nats_port()
    program.wait_for("the learner runs")
    program.process.send_signal(signal.SIGINT)
    program.wait_for("the learner is saving")
    while program.process.poll() is None:
        program.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert program.wait() in (130, -signal.SIGINT)  # equal to a shell: a late signal may hit Python while it exits
    assert "the learner has saved its work" in program.output
    assert_refused(port)
    workplace.assert_nothing_is_left()


def test_a_signal_stops_a_run_while_a_nats_server_does_not_answer(workplace: Workplace) -> None:
    workplace.write_job()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        program = workplace.run("--nats", f"nats://127.0.0.1:{mute.getsockname()[1]}")
        mute.settimeout(30)
        connection, _ = mute.accept()
        with connection:
            assert program.end_by(signal.SIGINT) == 130
    workplace.assert_nothing_is_left()


@pytest.mark.slow
def test_all_processes_end_with_a_killed_runner(workplace: Workplace) -> None:
    workplace.write_job(env={"id": "CartPole-v1", "numEnvs": 2, "vectorization": "Async"}, collect=ENDLESS)
    program = workplace.run()
    port = workplace.wait_for_nats_port()
    program.wait_for(r"test: [1-9][\d,]* frames")
    program.end_by(signal.SIGKILL)
    program.assert_nothing_runs(within_s=60)
    assert_refused(port)


def test_a_nats_server_that_dies_is_restarted_and_the_run_continues(workplace: Workplace) -> None:
    workplace.write_job(collect={"framesPerBatch": 64, "totalFrames": 64 * 20})
    workplace.write(
        "learner.py",
        """
        import time
        from pathlib import Path
        import rollfleet

        with rollfleet.connect() as collector:
            next(collector)
            print("the first batch is there", flush=True)
            while not Path("killed").exists():
                time.sleep(0.01)
            list(collector)
            print(f"{collector.batches} batches, {collector.frames} frames", flush=True)
        """,
    )
    program = workplace.run("--learner", "learner.py")
    program.wait_for("the first batch is there")
    program.kill_nats()
    program.wait_for("nats-server ended: killed by SIGKILL")
    program.wait_for("nats-server restarts")
    workplace.write("killed", "")
    program.wait_for("20 batches, 1280 frames")
    assert program.wait() == 0
    workplace.assert_nothing_is_left()

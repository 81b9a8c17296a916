"""`rollfleet record`: beside a learner, killed, and restarted."""

import resource
import signal
from itertools import islice

from tests.job_server import Connect, Server
from tests.sdk.cli.program import Workplace
from tests.sdk.nats.numbered_batches import ASYNC, of, publish
from tests.waiting import wait_until

from rollfleet import Recording
from rollfleet.recording.segments import segments_in
from rollfleet_api.address import URL
from rollfleet_api.permissions import Role

RANDOM = ASYNC | {"policy": {"random": {}}}


def test_another_recorder_continues_after_a_killed_one(workplace: Workplace, server: Server, connect: Connect) -> None:
    job = server.own(**RANDOM)
    folder = workplace.folder / "seen"
    command = ("record", "default/test", "--to", "seen", "--segment-size", "64Ki")
    environ = {URL: server.url(Role.LEARNER)}
    program = workplace.start(*command, environ=environ)
    program.wait_for("recording default/test to seen")
    workers = [server.start_worker(job, index) for index in range(2)]
    collector = connect()
    while not segments_in(folder) or len(Recording(folder)) < 20:
        next(collector)
    program.end_by(signal.SIGKILL)
    before = [arrival.sequence for arrival in Recording(folder).arrivals() if arrival.worker == 0]
    assert before == list(range(len(before)))
    program = workplace.start(*command, environ=environ)
    program.wait_for("recording default/test to seen")
    list(islice(collector, 20))
    collector.shutdown()
    for worker in workers:
        worker.join()
    assert program.wait() == 0
    program.wait_for(r"recorded \d+ batches, [\d,]+ frames, [\d.]+ MB; 0 missed, 0 unreadable")
    after = [(arrival.worker, arrival.sequence) for arrival in Recording(folder).arrivals()]
    assert len(after) > 20
    assert len(set(after)) == len(after)


def test_a_stopped_recorder_reports_its_counters(workplace: Workplace, server: Server) -> None:
    server.own(**RANDOM)
    program = workplace.start("record", "default/test", environ={URL: server.url(Role.LEARNER)})
    program.wait_for("recording default/test to recording")
    assert program.stop_by(signal.SIGTERM) == 143
    assert "recorded 0 batches" in program.output


def test_a_full_disk_ends_a_recorder_and_keeps_its_batches(workplace: Workplace, server: Server) -> None:
    server.own(**RANDOM | {"delivery": {"maxBatchesAhead": 4}})
    folder = workplace.folder / "seen"
    command = ("record", "default/test", "--to", "seen", "--segment-size", "1")  # the next batch writes the one before
    program = workplace.start(*command, environ={URL: server.url(Role.LEARNER)})
    program.wait_for("recording default/test to seen")
    link = server.link(Role.WORKER)
    for sequence in range(2):
        publish(link, 1.0 + sequence, of(0, sequence))
    wait_until(lambda: segments_in(folder))
    resource.prlimit(program.process.pid, resource.RLIMIT_FSIZE, (100, 100))  # the beginning of another file
    publish(link, 3.0, of(0, 2))
    assert program.wait() == 1
    assert ".unfinished: File too large" in program.output
    assert "Traceback" not in program.output
    assert [float(batch["observation"].mean()) for batch in Recording(folder)] == [1.0]

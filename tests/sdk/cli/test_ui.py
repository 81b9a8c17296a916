"""The page of a run on this machine, and of saved ones."""

import json
import re
import socket
import urllib.request
from typing import Any
from urllib.error import HTTPError

import pytest
from tests.sdk.cli.program import PATIENCE_S, Program, Workplace
from tests.waiting import wait_until

from rollfleet.cli.ui import SAVING

URL = r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)"
LEARNER = """
    import rollfleet

    with rollfleet.connect(policy=None) as collector:
        spec = collector.job.spec
        env = rollfleet.make_env(spec.env)
        policy = rollfleet.make_policy(spec.policy, env.single_observation_space, env.single_action_space)
        collector.update_policy_weights_(policy)
        print("<script>alert(1)</script>", flush=True)
        for batch in collector:
            if collector.frames % 6400 == 0:
                collector.update_policy_weights_(policy)
"""


class Api:
    """The API of a page, with the token of its URL."""

    def __init__(self, program: Program) -> None:
        port, self._token = program.wait_for(URL).groups()
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, path: str) -> Any:
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def kinds(self, job: str = "default/test") -> list[str]:
        return [each["kind"] for each in self.get(f"jobs/{job}/timeline")]


@pytest.mark.slow
def test_a_run_is_seen_and_saved_from_its_start_to_its_end(workplace: Workplace) -> None:
    workplace.write_job(
        workers=2, policy={"mlp": {"hidden": [8]}}, collect={"framesPerBatch": 64, "totalFrames": 10_000_000}
    )
    workplace.write("learner.py", LEARNER)
    program = workplace.run("--learner", "learner.py", "--ui")
    api = Api(program)
    wait_until(lambda: api.get("jobs")[0]["meanReturn"] is not None)
    (row,) = api.get("jobs")
    assert (row["key"], row["phase"], row["workersReady"], row["frames"] > 0) == ("default/test", "Running", 2, True)
    assert row["totalFrames"] == 10_000_000
    page = api.get("jobs/default/test")
    assert page["status"]["workers"] == {"desired": 2, "ready": 2}
    assert "framesPerBatch: 64" in page["spec"]
    assert "mode" in page["defaulted"]
    assert {each["name"] for each in page["objects"]} == {"nats-server", "learner", "worker 0", "worker 1"}
    wait_until(lambda: len(set(api.get("jobs/default/test/history")["series"]["frames"][-3:])) == 3)

    program.kill_worker(1)
    wait_until(lambda: "WorkerBack" in api.kinds())
    (killed_s,) = [each["time"] for each in api.get("jobs/default/test/timeline") if each["kind"] == "WorkerEnded"]
    history = api.get("jobs/default/test/history")
    assert history["time"] == sorted(history["time"])
    ready = zip(history["time"], history["series"]["workersReady"], strict=True)
    assert min(count for time_s, count in ready if time_s >= killed_s) == 1, "while it starts again"
    (worker,) = [each for each in api.get("jobs/default/test/workers") if each["index"] == 1]
    assert (worker["incarnation"], worker["restarts"], worker["hasPrevious"]) == (1, 1, True)
    assert "text" in api.get("jobs/default/test/logs?worker=1&previous=true")
    assert api.get("jobs/default/test/logs?worker=learner")["text"].startswith("<script>alert(1)</script>")

    program.kill_nats()
    wait_until(lambda: "NatsBack" in api.kinds())
    assert api.kinds()[:3] == ["Created", "LearnerConnected", "Version"]
    changes = [kind for kind in api.kinds() if kind.startswith(("Worker", "Nats"))]
    assert changes == ["WorkerEnded", "WorkerBack", "NatsAway", "NatsBack"]

    program.process.terminate()
    assert program.wait() == 143
    saved = workplace.start("ui", "runs")
    api = Api(saved)
    (row,) = api.get("jobs")
    assert re.fullmatch(r"default/test@\d{8}-\d{6}", row["key"])
    assert (row["diagnosis"]["state"], row["framesPerSecond"], row["ended"] > row["created"]) == ("Stopped", 0, True)
    assert api.kinds(row["key"])[-1] == "Suspended"
    assert api.get(f"jobs/{row['key']}/logs?worker=learner")["text"].startswith("<script>alert(1)</script>")
    workers = [(each["index"], each["state"]) for each in api.get(f"jobs/{row['key']}/workers")]
    assert [index for index, _ in workers] == [0, 1, None]
    assert {state for _, state in workers} <= {"Left", "Ended"}
    saved.process.terminate()
    assert saved.wait() == 143


@pytest.mark.slow
def test_a_run_that_fails_says_why(workplace: Workplace) -> None:
    workplace.write_job(env={"entrypoint": "no_such_module:Env"})
    workplace.write("learner.py", "import rollfleet\nwith rollfleet.connect() as collector:\n    next(collector)\n")
    program = workplace.run("--ui", "--learner", "learner.py")
    assert program.wait() == 1
    (page,) = [json.loads(file.read_text())["page"] for file in workplace.folder.glob("runs/test/*/run.json")]
    assert (page["row"]["phase"], page["row"]["diagnosis"]["isProblem"]) == ("Failed", True)
    assert page["row"]["diagnosis"]["reason"] == "WorkerFailed"
    assert "no_such_module" in page["row"]["diagnosis"]["message"]
    assert "See `rollfleet logs runs/test/" in page["row"]["diagnosis"]["advice"]
    (log,) = workplace.folder.glob("runs/test/*/logs/worker-0.log")
    assert "no_such_module" in log.read_text()


def test_a_taken_port_is_one_line_and_leaves_no_run(workplace: Workplace) -> None:
    workplace.write_job()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        program = workplace.run("--ui", "--ui-port", port)
        assert program.wait() == 1
    last = program.output.splitlines()[-1]
    assert last == f"port {port}: address already in use; write another port, or 0 for a free one"
    assert not (workplace.folder / "runs").exists()


def test_without_the_token_the_page_is_closed(workplace: Workplace) -> None:
    (workplace.folder / "runs").mkdir()
    program = workplace.start("ui", "runs")
    port, _ = program.wait_for(URL).groups()
    with pytest.raises(HTTPError, match="401") as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/jobs", timeout=10)
    refused.value.close()
    assert f"page of 0 saved runs ({SAVING})" in program.output

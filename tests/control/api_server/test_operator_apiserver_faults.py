"""On a real API server: what an operator makes of what went wrong, or happened while it was away."""

from collections.abc import Callable

import pytest
from tests.control.api_server.lab import MERGE, Lab, RunningOperator
from tests.control.kubernetes import OTHER_TOKEN, ApiServer
from tests.waiting import wait_until

from rollfleet_api.job import KIND
from rollfleet_api.kinds import KINDS
from rollfleet_api.messages import LearnerPhase, Statistic
from rollfleet_api.permissions import Role
from rollfleet_operator import names

pytestmark = pytest.mark.cluster
StartOperator = Callable[..., RunningOperator]


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    """No operator runs here yet."""
    return own_lab


@pytest.fixture
def start(lab: Lab, start_operator: StartOperator) -> StartOperator:
    """Starts an operator for the test's namespace."""
    return lambda **settings: start_operator(lab.namespace, lab.nats, **settings)


def test_new_operator_takes_over_and_touches_nothing(lab: Lab, start: StartOperator) -> None:
    lab.apply(learner={"template": {}})
    first = start()
    lab.wait_condition("Progressing", "Starting")
    lab.run("learner")
    first.stop()
    before = lab.versions()
    second = start(worker_image="worker:2")  # as an upgrade brings it
    wait_until(lambda: "rollfleet_reconciliations_total" in second.http("/metrics")[1])
    lab.seconds_pass(0.5)
    assert lab.versions() == before


def test_changes_during_the_operators_absence_are_caught_up(lab: Lab, start: StartOperator) -> None:
    lab.apply()
    lab.apply(name="other")
    first = start()
    wait_until(lambda: len(lab.runs()) == 2)
    wait_until(lambda: len(lab.nats.published) == 2)
    first.stop()
    lab.delete(KIND, "other")
    lab.apply(workers=5)
    lab.delete("NetworkPolicy", names.network_policy("cartpole", Role.WORKER))
    lab.learner_says(LearnerPhase.RUN)
    start()
    wait_until(lambda: lab.get("NetworkPolicy", names.network_policy("cartpole", Role.WORKER)))
    wait_until(lambda: {run["spec"]["parallelism"] for run in lab.runs()} >= {5})


@pytest.mark.parametrize("pod", ["none", "starting"])
def test_deleted_secret_is_noticed_and_soon_if_a_starting_pod_waits_for_it(
    lab: Lab, start: StartOperator, pod: str
) -> None:
    lab.apply()
    start(resync_s=0.5, verify_s=0.5 if pod == "none" else 3600.0)
    lab.run()
    name = names.secret("cartpole", Role.WORKER)  # Secrets are not watched
    before = wait_until(lambda: lab.get("Secret", name))
    if pod == "starting":
        lab.pod(0, phase="Pending")
    lab.delete("Secret", name)
    wait_until(lambda: (found := lab.get("Secret", name)) and found["metadata"]["uid"] != before["metadata"]["uid"])


def test_missing_right_is_a_condition_until_it_is_granted(lab: Lab, start: StartOperator) -> None:
    lab.grant("other", KIND, "get", "list", "watch", "patch", status=True)
    for kind in ("Pod", "ServiceAccount", "NetworkPolicy", "Secret", "Service", "Deployment"):
        lab.grant("other", kind, "get", "list", "watch", "create", "patch")
    lab.grant("other", "Event", "create", "list")
    lab.grant("other", "Job", "get", "list", "watch")
    lab.apply()
    start(token=OTHER_TOKEN)
    message = lab.wait_condition("Degraded", "Forbidden")["message"]
    assert 'cannot patch resource "jobs"' in message
    lab.grant("other", "Job", "create", "patch", "delete")
    lab.run()
    lab.wait_condition("Degraded", "AsExpected", "False")


def test_no_event_without_a_written_status(lab: Lab, start: StartOperator) -> None:
    lab.grant("other", KIND, "get", "list", "watch")
    for kind in ("Job", "Pod", "ServiceAccount", "NetworkPolicy", "Secret", "Service", "Deployment", "Event"):
        lab.grant("other", kind, "get", "list", "watch", "create", "patch")
    lab.apply(suspend=True)
    start(token=OTHER_TOKEN)
    wait_until(lambda: lab.get("ServiceAccount", names.account("cartpole")))
    lab.seconds_pass(0.5)
    assert lab.events() == []
    lab.grant("other", KIND, "patch", status=True)
    wait_until(lambda: ("Normal", "Suspended") in lab.events())


def test_counters_wait_for_the_next_interval_and_transitions_do_not(lab: Lab, start: StartOperator) -> None:
    lab.apply()
    start(status_interval_s=3600.0, refresh_s=0.05)
    lab.wait_condition("Progressing", "Starting")
    for frames in (1, 2):  # the first heartbeat may be a transition
        lab.learner_says(LearnerPhase.RUN, frames=frames)
        lab.seconds_pass(0.5)
    assert lab.status()["frames"] != 2
    lab.apply(suspend=True)
    lab.wait_condition("Suspended", "Suspended")
    assert lab.status()["frames"] == 2


def test_return_is_in_the_metrics_once_there_is_one_and_waits_alone_write_no_status(
    lab: Lab, start: StartOperator
) -> None:
    running = start()
    lab.apply()
    lab.wait_condition("Progressing", "Starting")
    labels = f'{{name="cartpole",namespace="{lab.namespace}"}}'
    lab.learner_says(LearnerPhase.RUN, frames=64, waited_s=1.0)
    wait_until(lambda: f"rollfleet_job_frames{labels} 64.0" in running.http("/metrics")[1])
    assert f"rollfleet_job_mean_return{labels}" not in running.http("/metrics")[1]
    before = (lab.get(KIND, "cartpole") or {})["metadata"]["resourceVersion"]
    lab.learner_says(LearnerPhase.RUN, frames=64, waited_s=9.0)
    lab.seconds_pass(1.0)  # several looks
    assert (lab.get(KIND, "cartpole") or {})["metadata"]["resourceVersion"] == before
    lab.learner_says(
        LearnerPhase.RUN,
        frames=64,
        waited_s=9.0,
        mean_return=21.0,
        episodes=3,
        episode_statistics={"goal.x": Statistic(mean=0.5, min=0.0, max=1.0, count=2)},
        failed_episodes={"app.Crash": 7},
    )
    wait_until(lambda: f"rollfleet_job_mean_return{labels} 21.0" in running.http("/metrics")[1])
    assert f"rollfleet_job_learner_waited_seconds{labels} 9.0" in running.http("/metrics")[1]
    assert "the learner waited" in lab.status()["bottleneck"]
    for part, value in {"mean": 0.5, "min": 0.0, "max": 1.0, "count": 2.0}.items():
        number = f'{{name="cartpole",namespace="{lab.namespace}",number="goal.x"}} {value}'
        assert f"rollfleet_job_episode_{part}{number}" in running.http("/metrics")[1]
    failed = f'rollfleet_job_failed_episodes{{error="app.Crash",name="cartpole",namespace="{lab.namespace}"}} 7.0'
    assert failed in running.http("/metrics")[1]
    assert f"rollfleet_job_workers_desired{labels} 2.0" in running.http("/metrics")[1]
    lab.delete(KIND, "cartpole")
    wait_until(lambda: labels not in running.http("/metrics")[1])


def test_job_that_is_nested_too_deeply_for_a_decoder_stops_no_other(
    lab: Lab, start: StartOperator, api_server: ApiServer
) -> None:
    first = start()
    lab.apply()
    lab.run()
    lab.apply("deep", suspend=True)
    body = '{"spec":{"template":{"metadata":{"annotations":' + '{"a":' * 2000 + "1" + "}" * 2004

    def workers() -> list[int]:
        return [each["spec"]["parallelism"] for each in lab.runs() if each["metadata"]["name"].startswith("cartpole-")]

    api_server.request("PATCH", KINDS[KIND].path(lab.namespace, "deep"), body, content_type=MERGE)
    wait_until(lambda: lab.condition("Degraded", "deep").get("reason") == "Invalid")
    lab.apply(workers=3)
    wait_until(lambda: workers() == [3])
    first.stop()
    start()
    lab.apply(workers=4)
    wait_until(lambda: workers() == [4])

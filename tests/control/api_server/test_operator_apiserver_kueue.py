"""On a real API server, with the real Kueue: it decides when a job's workers run, and the operator obeys."""

from collections.abc import Iterator

import pytest
from tests.control.api_server.kueue import ABSENT, NODES, PROGRAMS, Kueue, running_kueue
from tests.control.api_server.lab import Lab
from tests.control.chart.helm import find
from tests.control.kubernetes import ApiServer
from tests.waiting import wait_until

from rollfleet_api.job import KIND

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not all(map(find, PROGRAMS)), reason=ABSENT)]
QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
PRIORITY = "kueue.x-k8s.io/priority-class"
RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}}


@pytest.fixture(scope="module")
def started(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    with running_kueue(api_server, tmp_path_factory.mktemp("kueue")) as started:
        yield started


@pytest.fixture(name="kueue")
def room_for_four(started: Kueue, lab: Lab) -> Iterator[Kueue]:
    """Kueue with a queue in the lab's namespace, and room for four workers."""
    started.add_queue(lab.namespace, "gpus")
    started.make_room("4")
    yield started
    lab.clear()
    wait_until(lambda: not started.workloads(lab.namespace), 90)  # the garbage collector looks for new kinds every 30 s


def admitted(lab: Lab, workers: int) -> bool:
    """Whether so many workers run, on the nodes of Kueue's flavor."""
    found = [run["spec"] for run in lab.runs() if run["spec"]["template"]["spec"].get("nodeSelector") == NODES]
    return [spec["parallelism"] for spec in found if not spec["suspend"]] == [workers]


def test_workers_run_as_soon_as_there_is_room(lab: Lab, kueue: Kueue) -> None:
    kueue.make_room("1")
    lab.apply(labels=QUEUE, resources=RESOURCES, learner={"template": {}})
    lab.wait_condition("Suspended", "Queued")
    assert lab.run()["spec"]["suspend"] is True
    kueue.make_room("2")
    wait_until(lambda: admitted(lab, 2))
    lab.wait_condition("Suspended", "NotSuspended", "False")
    wait_until(lambda: lab.run("learner")["spec"]["suspend"] is False)
    assert len(kueue.workloads(lab.namespace)) == 2


def test_more_workers_than_there_is_room_for_wait(lab: Lab, kueue: Kueue) -> None:
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=2)
    wait_until(lambda: admitted(lab, 2))
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=3)
    wait_until(lambda: admitted(lab, 3))
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=5)
    wait_until(lambda: lab.run()["spec"]["parallelism"] == 5 and lab.run()["spec"]["suspend"])
    lab.wait_condition("Suspended", "Queued")
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=4)
    wait_until(lambda: admitted(lab, 4))
    lab.wait_condition("Suspended", "NotSuspended", "False")


@pytest.mark.parametrize("workers", [2, 0])
def test_a_job_with_environment_servers_waits_for_room_for_all_of_them(lab: Lab, kueue: Kueue, workers: int) -> None:
    kueue.make_room(f"{workers + 1}")
    servers = {"replicas": 2, "resources": RESOURCES}
    env = {"id": "CartPole-v1", "vectorization": "Async", "numEnvs": 4, "servers": servers}
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=workers, env=env)
    wait_until(lambda: "environment servers" in lab.wait_condition("Suspended", "Queued")["message"])
    assert not workers or admitted(lab, workers)
    kueue.make_room(f"{workers + 2 * max(workers, 1)}")
    wait_until(lambda: lab.run("env-server")["spec"]["suspend"] is False)
    lab.wait_condition("Suspended", "NotSuspended", "False")


def test_workers_of_a_new_image_take_the_room_of_the_old_ones(lab: Lab, kueue: Kueue) -> None:
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=4, image="a:1")
    wait_until(lambda: admitted(lab, 4))
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=4, image="a:2")
    wait_until(lambda: lab.run()["spec"]["template"]["spec"]["containers"][0]["image"] == "a:2" and admitted(lab, 4))


def test_preempted_job_continues_when_the_urgent_one_has_ended(lab: Lab, kueue: Kueue) -> None:
    kueue.create("WorkloadPriorityClass", "urgent", value=100)
    lab.apply("urgent", labels=QUEUE | {PRIORITY: "urgent"}, resources=RESOURCES, suspend=True)
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=4)
    wait_until(lambda: admitted(lab, 4))
    before = lab.run()["metadata"]["uid"]
    lab.apply("urgent", labels=QUEUE | {PRIORITY: "urgent"}, resources=RESOURCES, suspend=False)
    lab.wait_condition("Suspended", "Queued")
    wait_until(lambda: admitted(lab, 2))
    lab.delete(KIND, "urgent")
    wait_until(lambda: admitted(lab, 4), 90)  # once the garbage collector has deleted its workload: see `kueue`
    lab.wait_condition("Suspended", "NotSuspended", "False")
    assert lab.run()["metadata"]["uid"] == before


def test_running_job_changes_its_queue_with_new_workers(lab: Lab, kueue: Kueue) -> None:
    kueue.add_queue(lab.namespace, "others")
    others = {"kueue.x-k8s.io/queue-name": "others"}
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=4)
    wait_until(lambda: admitted(lab, 4))
    lab.apply(labels=others, resources=RESOURCES, workers=4)
    wait_until(lambda: lab.run()["metadata"]["labels"].items() >= others.items() and admitted(lab, 4))
    lab.wait_condition("Suspended", "NotSuspended", "False")


def test_default_queue_of_the_namespace_is_kept(lab: Lab, kueue: Kueue) -> None:
    kueue.add_queue(lab.namespace, "default")
    kueue.make_room("2")
    lab.apply(resources=RESOURCES, workers=3)
    lab.wait_condition("Suspended", "Queued")
    lab.apply(resources=RESOURCES, workers=2)
    wait_until(lambda: admitted(lab, 2))
    assert lab.run()["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"
    lab.apply(resources=RESOURCES, suspend=True)
    wait_until(lambda: not lab.runs())
    lab.apply(resources=RESOURCES, suspend=False)
    wait_until(lambda: admitted(lab, 2), 90)  # once the garbage collector has deleted its workload: see `kueue`


def test_workers_that_need_a_queue_wait_until_they_have_one(lab: Lab, kueue: Kueue) -> None:
    kueue.require_queues(lab.namespace)
    lab.apply(resources=RESOURCES)
    lab.wait_condition("Suspended", "Queued")
    lab.apply(resources=RESOURCES, workers=3)
    wait_until(lambda: lab.run()["spec"]["parallelism"] == 3)
    assert lab.run()["spec"]["suspend"] is True
    lab.apply(labels=QUEUE, resources=RESOURCES, workers=3)
    wait_until(lambda: admitted(lab, 3))
    lab.wait_condition("Suspended", "NotSuspended", "False")


def test_running_job_leaves_its_queue_and_its_waiting_learner_runs(lab: Lab, kueue: Kueue) -> None:
    container = {"name": "learner", "resources": {"requests": {"cpu": "3"}}}
    lab.apply(labels=QUEUE, resources=RESOURCES, learner={"template": {"spec": {"containers": [container]}}})
    wait_until(lambda: admitted(lab, 2))
    assert lab.run("learner")["spec"]["suspend"] is True
    lab.patch(KIND, "cartpole", {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": None}}})
    wait_until(lambda: lab.run("learner")["spec"]["suspend"] is False)


def test_queue_that_kueue_refuses_is_reported_and_leaves_the_workers_alone(lab: Lab, kueue: Kueue) -> None:
    lab.apply(resources=RESOURCES)
    before = lab.run()["metadata"]["uid"]
    lab.apply(labels={"kueue.x-k8s.io/queue-name": "Not_A_Name"}, resources=RESOURCES)
    assert "queue-name" in lab.wait_condition("Degraded", "PodsRefused")["message"]
    assert lab.run()["metadata"]["uid"] == before
    lab.apply(labels={}, resources=RESOURCES)
    lab.wait_condition("Degraded", "AsExpected", "False")

"""The page of an operator on a real API server: each viewer sees what the viewer's own token allows."""

import urllib.error
from collections.abc import Callable
from queue import Queue

import pytest
from aiohttp.test_utils import make_mocked_request
from tests.control.api_server.lab import Lab, RunningOperator
from tests.control.api_server.operator_program import StartProgram
from tests.control.api_server.viewer import Viewer, account_token, user_of, viewer_of
from tests.control.kubernetes import OTHER, OTHER_TOKEN, TOKEN, ApiServer
from tests.ports import free_ports
from tests.sdk.cluster.log_server import serving
from tests.sdk.cluster.namespace import Namespace
from tests.waiting import wait_until

from rollfleet_api.job import KIND
from rollfleet_operator.ui.guard import VALID_S, ReviewGuard

pytestmark = pytest.mark.cluster
JOBS = "/api/v1/jobs"

StartOperator = Callable[..., RunningOperator]


@pytest.fixture
def operator(api_server: ApiServer, labs: tuple[Lab, Lab], start_operator: StartOperator) -> RunningOperator:
    """An operator with a page, for a job in each of two namespaces."""
    ours, theirs = labs
    for lab in labs:
        lab.apply()
    running = start_operator(
        ours.namespace, ours.nats, namespaces=(ours.namespace, theirs.namespace), ui_port=free_ports(1)[0]
    )
    wait_until(lambda: len(viewer_of(running, TOKEN).keys()) == 2)
    return running


@pytest.fixture
def reader(api_server: ApiServer, labs: tuple[Lab, Lab], operator: RunningOperator) -> Viewer:
    """A viewer who may list the jobs of the first namespace, and do nothing else."""
    token = account_token(api_server, labs[0].namespace, "reader")
    labs[0].grant(user_of(labs[0], "reader"), KIND, "get", "list")
    return viewer_of(operator, token)


def key(lab: Lab) -> str:
    return f"{lab.namespace}/cartpole"


def test_without_a_token_for_the_api_server_nothing_is_shown(
    api_server: ApiServer, labs: tuple[Lab, Lab], operator: RunningOperator
) -> None:
    for_others = account_token(api_server, labs[0].namespace, "reader", audience="vault")
    labs[0].grant_everything(user_of(labs[0], "reader"))
    for token in ("", "guessed", OTHER_TOKEN + "x", for_others):
        for path in (JOBS, "/api/v1/jobs/a/b"):
            status, answer = viewer_of(operator, token).get(path)
            assert status == 401
            assert "token" in answer["error"]


def test_a_viewer_sees_the_jobs_that_the_viewer_may_list(
    labs: tuple[Lab, Lab], operator: RunningOperator, reader: Viewer
) -> None:
    ours, theirs = labs
    assert reader.keys() == {key(ours)}
    assert viewer_of(operator, TOKEN).keys() == {key(ours), key(theirs)}
    assert viewer_of(operator, OTHER_TOKEN).keys() == set(), "may list nothing"
    status, page = reader.get(f"{JOBS}/{key(ours)}")
    assert status == 200
    assert (page["row"]["key"], page["row"]["diagnosis"]["state"]) == (key(ours), "Pending")
    assert "id: CartPole-v1" in page["spec"]
    for part in ("", "/workers", "/history", "/timeline", "/logs?worker=0"):
        assert reader.get(f"{JOBS}/{key(theirs)}{part}")[0] == 403
    assert reader.get(f"{JOBS}/{ours.namespace}/missing")[0] == 404


def test_logs_are_read_with_the_viewers_rights(labs: tuple[Lab, Lab], reader: Viewer, api_server: ApiServer) -> None:
    ours, _ = labs
    logs: dict[str, Queue[str | None]] = {}
    node, namespace, pods = f"node-of-{ours.namespace}", Namespace(api_server.kubeconfig()), []
    for lines in (["<b>old</b>"], ["one", "two"]):
        pod = ours.pod(0, node=node, phase="Running")["metadata"]["name"]
        pods.append(pod)
        logs[pod] = Queue()
        for line in [*lines, None]:
            logs[pod].put(line)
        ours.seconds_pass(1.1)  # the API server's times have seconds
    path = f"{JOBS}/{key(ours)}/logs?worker=0&tail=10"
    wait_until(lambda: reader.get(f"{JOBS}/{key(ours)}/workers")[1][0]["hasPrevious"])
    status, answer = reader.get(path)
    assert status == 403, "the operator's own rights are not lent"
    assert f"you may not read the log of Pod {ours.namespace}/{pods[1]}" in answer["error"]
    ours.grant_everything(user_of(ours, "reader"))
    with serving(logs) as port:
        namespace.node(node, port)
        wait_until(lambda: reader.get(path)[0] == 200)
        # each line is served once
        assert reader.get(f"{path}&previous=true") == (200, {"text": "<b>old</b>\n"})
    assert reader.get(f"{JOBS}/{key(ours)}/logs?worker=1") == (404, {"error": "worker 1 has no pod with a log"})
    assert reader.get(f"{JOBS}/{key(ours)}/logs?worker=learner")[0] == 404
    namespace.clear()


def test_the_operator_needs_no_right_for_the_page(
    api_server: ApiServer, own_lab: Lab, start_operator: StartOperator
) -> None:
    own_lab.grant_everything(OTHER)  # in its namespace alone: the page may show more
    own_lab.apply()
    running = start_operator(own_lab.namespace, own_lab.nats, token=OTHER_TOKEN, ui_port=free_ports(1)[0])
    wait_until(lambda: viewer_of(running, TOKEN).keys() == {key(own_lab)})


@pytest.mark.parametrize("withdrawn", ["right", pytest.param("account", marks=pytest.mark.slow)])  # kept for 10 s
def test_what_is_withdrawn_ends_on_open_pages_too(api_server: ApiServer, own_lab: Lab, withdrawn: str) -> None:
    token, now_s = account_token(api_server, own_lab.namespace, "reader"), [0.0]
    revoke = own_lab.grant_everything(user_of(own_lab, "reader"))
    guard = ReviewGuard(api_server.api, lambda: now_s[0])
    request = make_mocked_request("GET", JOBS, headers={"Authorization": f"Bearer {token}"})
    viewer = api_server.call(guard.admit(request))

    def readable() -> set[str]:
        now_s[0] += VALID_S
        return set(api_server.call(viewer.readable({own_lab.namespace, "default"})))

    wait_until(lambda: readable() == {own_lab.namespace})
    if withdrawn == "right":
        revoke()
    else:
        own_lab.delete("ServiceAccount", "reader")
    wait_until(lambda: readable() == set())


@pytest.mark.slow
def test_only_the_operator_that_leads_serves_the_page(own_lab: Lab, start_program: StartProgram) -> None:
    ports, lease = free_ports(2), own_lab.share_a_lease()
    first, second = (Viewer(port, TOKEN) for port in ports)
    program = start_program("first", **lease, ROLLFLEET_UI_PORT=str(ports[0]))
    wait_until(lambda: listens(first))  # it leads; without the lease it would be ready, too
    start_program("second", **lease, ROLLFLEET_UI_PORT=str(ports[1]))
    own_lab.apply()
    wait_until(lambda: first.keys() == {key(own_lab)})
    with pytest.raises(urllib.error.URLError, match="refused"):
        second.get(JOBS)
    program.process.terminate()
    assert program.process.wait(30) == 0
    wait_until(lambda: listens(second))
    wait_until(lambda: second.keys() == {key(own_lab)})
    moments = second.get(f"{JOBS}/{key(own_lab)}/timeline")[1]
    assert [each["kind"] for each in moments] == ["Created"]


def listens(viewer: Viewer) -> bool:
    try:
        return viewer.get(JOBS)[0] == 200
    except urllib.error.URLError:
        return False

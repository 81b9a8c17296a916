"""The chart's ClusterRole `rollfleet-user` has all rights that `rollfleet.Jobs` needs, in one namespace."""

from contextlib import suppress
from pathlib import Path

import pytest
from tests.api.job_data import job_data
from tests.control.chart.helm import Helm, Rendered
from tests.control.kubernetes import OTHER, OTHER_TOKEN, ApiServer
from tests.sdk.cluster.log_server import said, serving
from tests.sdk.cluster.namespace import RBAC, Namespace
from tests.waiting import wait_until

from rollfleet import Jobs
from rollfleet.cluster.kept_files import create_claim
from rollfleet.cluster.refusals import USER_ROLE
from rollfleet.cluster.sources import Sources
from rollfleet.errors import ClusterError

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def rendered(repository: Path) -> Rendered:
    return Helm(repository / "charts/rollfleet").render()


@pytest.fixture
def users_jobs(api_server: ApiServer, rendered: Rendered, namespace: Namespace) -> Jobs:
    """The jobs of a namespace for a user with that role there, and no other."""
    # A Role of the same rules: a ClusterRole would outlive the test's namespace.
    rules = rendered.of("ClusterRole")[USER_ROLE]["rules"]
    namespace.grant(USER_ROLE, rules, {"apiGroup": RBAC, "kind": "User", "name": OTHER})
    jobs = Jobs(kubeconfig=api_server.kubeconfig(OTHER_TOKEN), namespace=namespace.name)

    def allowed() -> bool:
        with suppress(ClusterError):
            return jobs.list() == ()
        return False

    wait_until(allowed)  # the API server learns of a role a little later
    return jobs


def test_a_user_with_the_role_may_do_all_that_jobs_does(users_jobs: Jobs, namespace: Namespace) -> None:
    jobs = users_jobs
    jobs.submit(job_data(source={"configMap": "code"}), sources=Sources())
    assert [each.key for each in jobs.list()] == [f"{namespace.name}/cartpole"]
    assert next(jobs.watch("cartpole")).key == f"{namespace.name}/cartpole"
    assert jobs.describe("cartpole").diagnosis.state == "Unknown"
    assert jobs.events("cartpole") == ()
    assert jobs.scale("cartpole", 3).spec.workers == 3
    create_claim(jobs, jobs.get("cartpole"), "cartpole-kept", "1Gi")
    pod = namespace.pod(0)
    with serving({pod: said(None)}) as port:
        namespace.node("node-0", port)
        assert list(jobs.logs("cartpole")) == []
    assert jobs.api.get("Secret", namespace.name, "cartpole-learner-nats") is None
    jobs.delete("cartpole")
    assert jobs.api.delete("ConfigMap", namespace.name, "code") is True


def test_the_role_shows_no_list_of_secrets_and_no_other_namespace(users_jobs: Jobs, namespace: Namespace) -> None:
    with pytest.raises(ClusterError, match="you may not list Secrets"):
        users_jobs.api.list("Secret", namespace.name)
    with pytest.raises(ClusterError, match="you may not create Pods"):
        users_jobs.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace.name}})
    with pytest.raises(ClusterError, match="you may not list CollectorJobs in all namespaces"):
        users_jobs.list(all_namespaces=True)


def test_the_role_is_there_once_in_a_cluster_like_the_definition(repository: Path, rendered: Rendered) -> None:
    assert USER_ROLE not in Helm(repository / "charts/rollfleet").render(crds__enabled=False).of("ClusterRole")

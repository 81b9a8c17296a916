"""A cluster whose chart is older than this program: its jobs lack a field that this program's jobs have."""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.client import ApiextensionsV1Api
from tests.waiting import wait_until

from rollfleet import Cluster, Jobs
from rollfleet.cluster.sources import Sources
from rollfleet.cluster.submission import Submission
from rollfleet.errors import ClusterError
from rollfleet.testing import small_job
from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.metadata import Metadata

if TYPE_CHECKING:
    from pathlib import Path

    from rollfleet.cluster.api import ClusterApi

DEFINITION = "collectorjobs.rollfleet.dev"
NEWER = {"env": {"id": "CartPole-v1"}, "policy": {"random": {}}, "collect": {"framesPerBatch": 8, "infoKeys": ["x"]}}


def job() -> CollectorJob:
    return small_job(**NEWER).model_copy(update={"metadata": Metadata(name="mine")})


@pytest.fixture
def jobs(api: "ClusterApi", kubeconfig: "Path", monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """The jobs of a cluster that has a job `old`, and whose definition has no `collect.infoKeys`."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    jobs, definitions = Jobs(namespace=api.namespace), ApiextensionsV1Api(api.client)
    jobs.submit(job().model_copy(update={"metadata": Metadata(name="old")}))
    definition: Any = definitions.read_custom_resource_definition(DEFINITION).spec.versions[0]
    collect = definition.schema.open_apiv3_schema.properties["spec"].properties["collect"].properties
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/collect/properties/infoKeys"
    field = api.client.sanitize_for_serialization(collect["infoKeys"])

    def knows_the_field() -> bool:
        with suppress(ClusterError):
            jobs.edit("old", {"collect": {"infoKeys": ["y"]}})
            jobs.edit("old", {"collect": {"infoKeys": ["x"]}})
            return True
        return False

    definitions.patch_custom_resource_definition(DEFINITION, [{"op": "remove", "path": path}])
    wait_until(lambda: not knows_the_field())
    yield jobs
    definitions.patch_custom_resource_definition(DEFINITION, [{"op": "add", "path": path, "value": field}])
    wait_until(knows_the_field)


OLDER = (
    r"^the Rollfleet of this cluster is older than this program's \(.+\): its jobs have no spec.collect.infoKeys; "
    r"upgrade it with `helm upgrade rollfleet .*`, or leave it out$"
)


def test_a_field_that_it_does_not_know_is_named_with_the_upgrade(jobs: Jobs) -> None:
    for submit in (
        lambda: jobs.submit(job()),
        lambda: jobs.edit("old", {"collect": {"infoKeys": ["z"]}}),
        lambda: Submission(job(), Sources(), Cluster(namespace=jobs.api.namespace, progress=False)),
    ):
        with pytest.raises(ClusterError, match=OLDER) as refused:
            submit()
        assert refused.value.reason == "OlderOperator"
        assert "\n" not in str(refused.value)


def test_a_field_of_no_version_is_a_mistake(jobs: Jobs) -> None:
    with pytest.raises(ClusterError, match=r"^a job has no spec\.collect\.inofKeys: docs/fields\.md has all fields$"):
        jobs.edit("old", {"collect": {"inofKeys": ["z"]}})
    assert jobs.api.get(KIND, jobs.api.namespace, "mine") is None

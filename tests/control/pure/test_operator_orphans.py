"""Which data on NATS the operator removes, of jobs that it does not find in the cluster."""

from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest
from tests.control.pure.nats_in_memory import NatsInMemory

from rollfleet_api.job import API_VERSION, KIND
from rollfleet_api.validation import parse_job
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.reconcile import Reconciler
from rollfleet_operator.settings import Settings


def manifest(name: str) -> dict[str, Any]:
    metadata = {"namespace": "lab", "name": name, "uid": f"uid of {name}", "resourceVersion": "5"}
    spec = {"env": {"id": "CartPole-v1"}, "policy": {"random": {}}, "collect": {"framesPerBatch": 8}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


class Cluster:
    """A cluster with jobs, and what NATS has of them."""

    def __init__(self) -> None:
        self.cache, self.nats = Cache(), NatsInMemory()
        self.api = Api(lambda: kopf.ConnectionInfo(server="http://localhost"))  # nothing is asked of it
        self.reconciler = Reconciler(self.api, self.cache, self.nats, Settings())

    async def create(self, *names: str) -> None:
        for name in names:
            self.cache.put(manifest(name))
            await self.nats.provision(parse_job(manifest(name)))

    def lists(self, *names: str) -> set[JobKey]:
        """A list of the API server with these jobs only."""
        return self.cache.replace(KIND, [manifest(name) for name in names], "9")

    async def look(self) -> None:
        """What the operator does each minute."""
        for key in await self.reconciler.orphans():
            await self.reconciler.reconcile(key)

    @property
    def stored(self) -> set[str]:
        return {key.name for key in self.nats.published}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A cluster, whose connection is closed after the test."""
    cluster = Cluster()
    yield cluster
    await cluster.api.close()


async def test_missing_job_is_removed_at_the_second_look(cluster: Cluster) -> None:
    await cluster.create("a", "b")
    for key in cluster.lists("a"):
        await cluster.reconciler.reconcile(key)
    await cluster.look()
    assert cluster.stored == {"a", "b"}
    await cluster.look()
    assert cluster.stored == {"a"}


async def test_job_that_was_missing_for_a_moment_is_not_removed(cluster: Cluster) -> None:
    await cluster.create("a", "b")
    for seen in (("a",), ("a", "b"), ("a",), ("a", "b")):
        cluster.lists(*seen)
        await cluster.look()
    assert cluster.stored == {"a", "b"}


async def test_nothing_is_removed_when_all_jobs_are_missing(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.create("a", "b")
    for key in cluster.lists():
        await cluster.reconciler.reconcile(key)
    for _ in range(3):
        await cluster.look()
    assert cluster.stored == {"a", "b"}
    assert "none of the 2 jobs on NATS exists" in caplog.text


async def test_jobs_that_come_back_one_by_one_cost_the_others_nothing(cluster: Cluster) -> None:
    await cluster.create("a", "b")
    cluster.lists()
    await cluster.look()
    await cluster.create("new")
    for seen in ("new", "new", "new a", "new a"):
        cluster.lists(*seen.split())
        await cluster.look()
        assert cluster.stored == {"a", "b", "new"}
    for seen in ("new a b", "new a", "new a"):  # from then on `b` is a job like others
        cluster.lists(*seen.split())
        await cluster.look()
    assert cluster.stored == {"a", "new"}


async def test_job_that_is_seen_to_be_deleted_is_removed_at_once(cluster: Cluster) -> None:
    await cluster.create("a")
    key = cluster.cache.remove(manifest("a"))
    assert key
    await cluster.reconciler.reconcile(key)
    assert cluster.stored == set()

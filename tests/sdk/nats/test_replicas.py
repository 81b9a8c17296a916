"""`delivery.replicas`: of a NATS cluster of three servers, any one may be killed."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.api.job_data import job_data
from tests.job_server import Server, WorkerThread, actor_critic, join_all
from tests.nats_servers import START_TIMEOUT_S, SUBJECTS, NatsServers
from tests.waiting import wait_until

import rollfleet
from rollfleet import Collector, CollectorJob
from rollfleet.errors import JetStreamRefused
from rollfleet.nats import presence
from rollfleet.nats.link import Link
from rollfleet.nats.polling import insist
from rollfleet.nats.presence import is_missing
from rollfleet.nats.streams import own, provision
from rollfleet.nats.transport import NatsTransport
from rollfleet.rollout.trajectory_ids import split
from rollfleet.transports.learner_side import Arrival
from rollfleet_api import streams
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job

SPEC: dict[str, Any] = {
    "mode": "Async",
    "workers": 2,
    "env": {"id": "CartPole-v1", "numEnvs": 2},
    "policy": {"mlp": {}},
    "collect": {"framesPerBatch": 16},
    "weights": {"maxLag": 1000},  # no batch is too old
    "delivery": {"replicas": 3, "maxBytes": "16Mi", "maxBatchesAhead": 2},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsServers]:
    running = NatsServers(tmp_path, 3)
    yield running
    running.stop()


def job_of(**spec: Any) -> CollectorJob:
    return parse_job(job_data({"name": SUBJECTS.job, "namespace": SUBJECTS.namespace}, **SPEC | spec))


def connected(cluster: NatsServers) -> Collector:
    return rollfleet.connect(SUBJECTS.key, policy=actor_critic(), address=cluster.url(Role.LEARNER))


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["batches", "state"])
def test_a_killed_server_costs_no_batch(cluster: NatsServers, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "ACK_WAIT_NS", 2 * 10**9)  # what the killed server had on its way comes again so soon
    received: dict[tuple[int, int], None] = {}  # worker and sequence of each batch, in the order of their arrival

    def receive(transport: NatsTransport, *, timeout_s: float) -> Arrival | None:
        if arrival := receive_any(transport, timeout_s=timeout_s):
            received.setdefault((arrival.worker, arrival.sequence))
        return arrival

    receive_any = NatsTransport.receive
    monkeypatch.setattr(NatsTransport, "receive", receive)
    job = job_of()
    cluster.provision(job)
    workers = [WorkerThread(cluster, job, index) for index in range(2)]  # type: ignore[arg-type]
    batches: list[TensorDict] = []
    with connected(cluster) as collector:
        batches += islice(collector, 20)
        stream = SUBJECTS.batches_stream if whose == "batches" else SUBJECTS.state_stream
        victim = cluster.leader_of(stream)
        cluster.end(victim)
        before = collector.version
        batches += islice(collector, 40)
        assert collector.version > before
        cluster.start_again(victim)
        batches += islice(collector, 40)
        while collector.stats().missed:
            batches += islice(collector, 1)
    for worker in workers:
        worker.join()
    rows: dict[int, dict[int, TensorDict]] = defaultdict(dict)
    for (index, sequence), batch in zip(received, batches, strict=False):
        assert split(int(batch["collector", "traj_ids"][0, 0]))[0] == index
        rows[index][sequence] = batch
    assert set(rows) == {0, 1}
    for of_worker in rows.values():  # frame follows frame
        assert sorted(of_worker) == list(range(len(of_worker)))
        whole: Any = torch.cat([of_worker[sequence] for sequence in sorted(of_worker)], dim=1)
        continuing = ~whole["next", "done"][:, :-1, 0]
        assert torch.equal(whole["next", "observation"][:, :-1][continuing], whole["observation"][:, 1:][continuing])


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["File", "Memory"])
def test_a_restart_of_the_one_server_with_a_jobs_streams_ends_nobody(
    cluster: NatsServers, storage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(presence, "DELETED_AFTER_S", 0.5)
    unanswered: list[None] = []

    async def asked(link: Link) -> bool:
        unanswered.append(None)
        return await is_missing(link)

    monkeypatch.setattr(presence, "is_missing", asked)
    job = job_of(delivery=SPEC["delivery"] | {"replicas": 1, "storage": storage})
    cluster.provision(job)
    owner = cluster.link()
    kept = owner.call(own(owner, job), timeout_s=START_TIMEOUT_S)
    workers = [WorkerThread(cluster, job, index) for index in range(2)]  # type: ignore[arg-type]
    with connected(cluster) as collector:
        list(islice(collector, 10))
        victims = {cluster.leader_of(stream) for stream in (SUBJECTS.state_stream, SUBJECTS.batches_stream)}
        for victim in victims:
            cluster.end(victim)
        if len(victims) == 1:  # several looks of each worker: no responder is no proof
            wait_until(lambda: len(unanswered) >= 8)
        for victim in victims:
            cluster.start_again(victim)
        if storage == "Memory":  # as the operator does when NATS was away
            owner.call(insist(lambda: provision(owner, job, kept=kept)), timeout_s=START_TIMEOUT_S)
        list(islice(collector, 10))
    join_all(workers)
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) < 20


def test_more_replicas_than_servers_are_refused_with_advice(server: Server) -> None:
    link = server.link()
    with pytest.raises(JetStreamRefused, match=r"`delivery.replicas: 3` needs a NATS cluster of that many servers"):
        link.call(provision(link, job_of()), timeout_s=10)

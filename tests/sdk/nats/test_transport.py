"""The learner's side of a job, over a real nats-server."""

import pytest
from tests.job_server import Server

from rollfleet.nats.receiver import BatchReceiver
from rollfleet.nats.transport import NatsTransport
from rollfleet_api.permissions import Role


def test_an_interrupted_end_still_closes_the_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    close, ended = BatchReceiver.close, list[bool]()

    def interrupted(receiver: BatchReceiver) -> None:
        close(receiver)
        raise KeyboardInterrupt

    job, link = server.own(), server.link(Role.LEARNER)
    link.after_close(lambda: ended.append(link.closed))
    transport = NatsTransport(link, job)
    monkeypatch.setattr(BatchReceiver, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transport.close()
    assert ended == [True]

"""The numbers that a learner gives to the processes of its workers."""

from dataclasses import replace

from rollfleet.nats.numbering import Numbering
from rollfleet_api.messages import Progress, WorkerStatus
from rollfleet_api.transfers import Receipt


def test_a_successor_with_the_same_random_number_is_another_incarnation() -> None:
    numbering, lacks = Numbering(), WorkerStatus(worker=0, incarnation=0, process=7)
    for incarnation in range(3):
        for _ in range(2):  # its next heartbeat may come before the answer
            assert numbering.hear(lacks) == Receipt(process=7, incarnation=incarnation)
        assert numbering.hear(replace(lacks, incarnation=incarnation, follows=Progress(session=1))) is None
    assert numbering.next == 3

"""Attacks on NATS by a client with one worker's credentials. Each function sends one piece of an attack."""

from collections.abc import Awaitable, Callable

from nats.aio.client import Client

from rollfleet_api.subjects import Ask, Subjects

LARGE = bytes(1_000_000)
LONG_TOKEN = "x" * 3_800  # NATS takes subjects of 4 KB

Attack = Callable[[Client, Subjects, int], Awaitable[None]]


async def workers_that_do_not_exist(client: Client, subjects: Subjects, number: int) -> None:
    """Use many subjects: NATS needs memory for each."""
    for subject in (subjects.wants(str(number)), subjects.worker(number), subjects.chunk(number)):
        await client.publish(subject, b"")


async def long_subjects(client: Client, subjects: Subjects, number: int) -> None:
    await client.publish(f"{subjects.worker(number)}{LONG_TOKEN}", b"")
    await client.publish(f"{subjects.chunk(number)}{LONG_TOKEN}", b"")


async def large_messages(client: Client, subjects: Subjects, number: int) -> None:
    """Flood the learner with messages as large as the server takes."""
    large = LARGE[: client.max_payload]
    await client.publish(subjects.wants(str(number)), large)
    await client.publish(subjects.chunk(number), large)


async def questions(client: Client, subjects: Subjects, number: int) -> None:
    """Ask all processes of the job for everything, all the time."""
    for what in Ask:
        await client.publish(subjects.ask(what), b"")


ATTACKS = [
    (questions, 10_000),
    (workers_that_do_not_exist, 10_000),
    (long_subjects, 5_000),
    (large_messages, 400),
]
"""Each attack, and how many times it is made."""

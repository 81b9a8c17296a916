"""The pages of jobs on NATS: one message for each job, in an account and a stream of the installation's own.

The stream is bounded. When it is full, or a message has not been stored again for `KEPT_S`, NATS drops the oldest
messages, which are those of deleted jobs.
"""

import time
from typing import Final

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.account_registry import AccountRegistry
from rollfleet_operator.nats.accounts import page_account
from rollfleet_operator.nats.connection import REQUEST_TIMEOUT_S, Connection, Server, own_user
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats_port import KEPT_S, PAGE_BYTES, JobKey

STREAM_BYTES: Final = 64 << 20

_STREAM: Final = "rollfleet_pages"
_PREFIX: Final = "rollfleet.page"
_CONFIGURATION: Final = StreamConfig(
    name=_STREAM,
    subjects=[f"{_PREFIX}.*.*"],
    max_msgs_per_subject=1,
    max_bytes=STREAM_BYTES,
    max_msg_size=PAGE_BYTES,
    max_age=KEPT_S,
    discard=DiscardPolicy.OLD,
    storage=StorageType.FILE,
)


class PageStore:
    """The stored pages of an installation.

    Args:
        registry: The accounts of the server.
        server: Its address.
        keys: The keys of the installation.
        installation: The id of the installation.
    """

    def __init__(self, registry: AccountRegistry, server: Server, keys: Keys, installation: str) -> None:
        self._registry, self._keys, self._installation = registry, keys, installation
        self._account = Connection(server, own_user(keys.pages(installation)), "pages")
        self._provisioned = False

    async def load(self) -> dict[JobKey, bytes]:
        """Return all stored pages.

        Raises:
            NatsUnavailable: NATS did not return them.
        """
        found: dict[JobKey, bytes] = {}
        try:
            jetstream = await self._jetstream()
            count = (await jetstream.stream_info(_STREAM)).state.messages
            messages = await jetstream.subscribe(f"{_PREFIX}.>", ordered_consumer=True)
            for _ in range(count):
                message = await messages.next_msg(REQUEST_TIMEOUT_S)
                namespace, name = message.subject.split(".")[-2:]
                found[JobKey(namespace, name)] = message.data
            await messages.unsubscribe()
        except (NatsError, TimeoutError, OSError) as error:
            raise NatsUnavailable(f"NATS did not return the pages of jobs: {error!r}") from error
        return found

    async def save(self, key: JobKey, page: bytes) -> None:
        """Store a job's page instead of its last one.

        Raises:
            NatsUnavailable: NATS did not store it.
        """
        subject = f"{_PREFIX}.{key.namespace}.{key.name}"
        try:
            await (await self._jetstream()).publish(subject, page, timeout=REQUEST_TIMEOUT_S, stream=_STREAM)
        except (NatsError, TimeoutError, OSError) as error:
            self._provisioned = False  # NATS may have lost the stream
            raise NatsUnavailable(f"NATS did not store the page of {key.namespace}/{key.name}: {error!r}") from error

    async def close(self) -> None:
        """Disconnect."""
        await self._account.close()

    async def _jetstream(self) -> JetStreamContext:
        """Return the account's JetStream, with the stream."""
        if not self._provisioned:
            account = page_account(self._keys, self._installation, now_s=int(time.time()))
            await self._registry.ensure(account)
        jetstream: JetStreamContext = (await self._account.client()).jetstream(timeout=REQUEST_TIMEOUT_S)
        if not self._provisioned:
            await jetstream.add_stream(_CONFIGURATION)
            self._provisioned = True
        return jetstream

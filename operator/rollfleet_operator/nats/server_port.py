"""`NatsPort` on a real server with the resolver `full`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_api.subjects import Subjects
from rollfleet_operator.errors import NatsUnavailable, OwnedElsewhere
from rollfleet_operator.nats import streams
from rollfleet_operator.nats.account_registry import AccountRegistry
from rollfleet_operator.nats.accounts import installation_of, job_account, job_of, uid_of
from rollfleet_operator.nats.connection import Connection, own_user
from rollfleet_operator.nats.job_connections import JobConnections
from rollfleet_operator.nats.settings import NatsSettings
from rollfleet_operator.nats.tokens import Token, read_credentials
from rollfleet_operator.nats.users import issued_at, role_credentials
from rollfleet_operator.nats_port import Endpoint, Heartbeats, JobKey

TIMEOUT_S = 9.0


class NatsOnServer:
    """NATS in JWT mode: an account for each job, a user for each role.

    It remembers nothing that NATS does not know: each call reads the present state and repairs it, so that a restart of
    the operator, or a NATS that lost its data, makes no difference.
    """

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._keys = settings.keys
        identity = own_user(self._keys.system_account())
        if settings.system:
            given = read_credentials(settings.system)
            identity = lambda: given  # noqa: E731
        self._system = Connection(settings.endpoint, identity, "system")
        self._registry = AccountRegistry(self._system, self._keys)
        self._connections = JobConnections(settings.endpoint, self._keys)
        self._checked: set[Subjects] = set()  # jobs whose account is no other installation's

    @property
    def endpoint(self) -> Endpoint:
        """The address of NATS for pods."""
        return self._settings.endpoint

    @property
    def dropped_messages(self) -> int:
        """Number of messages of jobs that were not kept; see `NatsPort`."""
        return self._connections.messages.dropped

    def credentials(self, job: CollectorJob, role: Role) -> bytes:
        """Return the credentials file of a role; see `NatsPort`."""
        life_s = self._settings.life_s
        issued_s = issued_at(job, life_s, int(time.time()))
        return role_credentials(job, role, self._keys, issued_s=issued_s, life_s=life_s)

    async def provision(self, job: CollectorJob, *, renewed_s: float = 0.0) -> None:
        """Create or update the job's account and stream; see `NatsPort`."""
        subjects = subjects_of(job)
        async with _time_limit(subjects):
            settings, now_s = self._settings, int(time.time())
            wanted = job_account(
                job,
                self._keys,
                settings.state_bytes,
                now_s=now_s,
                installation=settings.installation,
                renewed_s=int(renewed_s),
            )
            held = await self._held(subjects)
            if held and uid_of(held) != uid_of(wanted):
                await self._remove(subjects)
            await self._registry.ensure(wanted)
            listener = await self._connections.of(subjects)
            await streams.provision(listener.account, job, listener.kept(job), state_bytes=settings.state_bytes)

    async def deprovision(self, key: JobKey) -> None:
        """Remove all data of a job; see `NatsPort`."""
        subjects = Subjects(namespace=key.namespace, job=key.name)
        async with _time_limit(subjects):
            with suppress(OwnedElsewhere):
                await self._held(subjects)
                await self._remove(subjects)

    async def provisioned(self) -> set[JobKey]:
        """Return the jobs of this installation with data on NATS; see `NatsPort`."""
        async with _time_limit(None):
            accounts = await self._registry.all()
        jobs = {job_of(account) for account in accounts if installation_of(account) == self._settings.installation}
        return {JobKey(job.namespace, job.job) for job in jobs if job}

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Return the last messages of a job; see `NatsPort`."""
        subjects = subjects_of(job)
        async with _time_limit(subjects):
            if subjects not in self._checked:
                await self._held(subjects)
            return await (await self._connections.of(subjects)).heartbeats(job)

    async def close(self) -> None:
        """Disconnect."""
        await self._connections.close()
        await self._system.close()

    async def _held(self, subjects: Subjects) -> Token | None:
        """Return the account of a job as NATS has it; None: it has none. A job of ours adopts an account without an id.

        Raises:
            OwnedElsewhere: It is another installation's.
        """
        self._checked.discard(subjects)
        held = await self._registry.held(self._keys.account(subjects).public)
        ours = self._settings.installation
        if held and (theirs := installation_of(held)) not in ("", ours):
            raise OwnedElsewhere(
                f"installation {theirs!r} runs a job {subjects.key} on the same NATS with the same signing key, and "
                f"this one is {ours!r}: rename the job, give this installation its own signing key, or, if both are "
                f"one, set the chart's `operator.installation` to {theirs!r}"
            )
        self._checked.add(subjects)
        return held

    async def _remove(self, subjects: Subjects) -> None:
        account = self._keys.account(subjects).public
        if held := await self._registry.held(account):
            # NATS deletes an account, but not its streams.
            await streams.deprovision((await self._connections.of(subjects)).account, subjects)
        await self._connections.leave(subjects)
        if held:
            await self._registry.forget(account)
        self._checked.discard(subjects)


@asynccontextmanager
async def _time_limit(subjects: Subjects | None) -> AsyncIterator[None]:
    """Turn a timeout into the one error that the operator expects."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError as error:
        about = f" about {subjects.key}" if subjects else ""
        raise NatsUnavailable(f"NATS did not answer{about} within {TIMEOUT_S:g} s") from error

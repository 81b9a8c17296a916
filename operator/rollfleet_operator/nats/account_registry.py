"""The accounts that NATS knows: asked for, told and taken away through its system account."""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import REQUEST_TIMEOUT_S, Connection, parsed
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import Token, TokenInvalid, read_token
from rollfleet_operator.nats.trust import CLAIMS_DELETE, CLAIMS_PACK, CLAIMS_UPDATE, claims_lookup

log = logging.getLogger(__name__)


class AccountRegistry:
    """The accounts of a NATS server whose resolver is `full`: it keeps what it is told.

    Args:
        system: A connection of a user in the system account.
        keys: What accounts are signed with.
    """

    def __init__(self, system: Connection, keys: Keys) -> None:
        self._system, self._keys = system, keys

    async def held(self, account: str) -> Token | None:
        """What NATS knows of an account; None: nothing."""
        answer = await self._ask(claims_lookup(account))
        return read_token(answer.decode()) if answer else None

    async def all(self) -> list[Token]:
        """Every account that our operator signed."""
        client = await self._system.client()
        inbox = client.new_inbox()
        heard = await client.subscribe(inbox)
        await client.publish(CLAIMS_PACK, b"", reply=inbox)
        found = []
        try:
            while data := (await heard.next_msg(REQUEST_TIMEOUT_S)).data:
                # Each is `<account>|<token>`; an empty message ends them.
                _, _, text = data.decode(errors="replace").partition("|")
                try:
                    found.append(read_token(text))
                except TokenInvalid as error:
                    log.debug("an account that cannot be read: %s", error)
        except (NatsTimeoutError, NoRespondersError) as error:
            raise NatsUnavailable(f"NATS did not list its accounts: {error!r}") from error
        finally:
            await heard.unsubscribe()
        return [token for token in found if token.issuer == self._keys.operator.public]

    async def ensure(self, account: Token, *, again: bool = False) -> None:
        """Make an account, or change it; nothing happens where NATS knows it as it is, unless `again` says so."""
        known = await self.held(account.subject)
        if known and account.says_the_same(known) and not again:
            return
        # NATS passes over a token that it has: what is told again must differ, and be newer than what it replaces.
        issued_s = max(account.issued_s, known.issued_s + 1) if known else account.issued_s
        token = replace(account, issued_s=issued_s).signed(self._keys.operator)
        await self._change(CLAIMS_UPDATE, token, account.name)

    async def forget(self, accounts: Iterable[str]) -> None:
        """Take accounts away; whoever is connected is cut off."""
        operator = self._keys.operator
        order = Token(
            name="forget", subject=operator.public, issued_s=int(time.time()), nats={"accounts": list(accounts)}
        )
        await self._change(CLAIMS_DELETE, order.signed(operator), "accounts")

    async def _change(self, subject: str, token: str, what: str) -> None:
        try:
            answer = parsed(await self._system.request(subject, token))
        except NoRespondersError as error:
            raise NatsUnavailable(_NO_RESOLVER) from error
        if refusal := answer.get("error"):
            raise NatsUnavailable(f"NATS refused {subject} for {what}: {refusal}")

    async def _ask(self, subject: str) -> bytes:
        try:
            return (await self._system.request(subject)).data
        except NoRespondersError as error:
            raise NatsUnavailable(_NO_RESOLVER) from error


_NO_RESOLVER = "NATS takes no accounts: its configuration needs `resolver: {type: full, allow_delete: true, ...}`"

"""The accounts of a NATS server: read, created and deleted through its system account."""

import logging
import os
import time
from dataclasses import replace

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.accounts import keeping_revocations
from rollfleet_operator.nats.connection import REQUEST_TIMEOUT_S, Connection, parsed
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import SEED_BYTES, Token, TokenInvalid, read_token
from rollfleet_operator.nats.trust import (
    CLAIMS_DELETE,
    CLAIMS_PACK,
    CLAIMS_UPDATE,
    claims_lookup,
)

log = logging.getLogger(__name__)


class AccountRegistry:
    """The accounts of a NATS server with the resolver `full`, which stores them."""

    def __init__(self, system: Connection, keys: Keys) -> None:
        self._system, self._keys = system, keys

    async def held(self, account: str) -> Token | None:
        """Return an account as NATS has it; None: it has none."""
        answer = (await self._request(claims_lookup(account))).data
        return read_token(answer.decode()) if answer else None

    async def all(self) -> list[Token]:
        """Return all accounts that the operator's key has signed."""
        client = await self._system.client()
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await client.publish(CLAIMS_PACK, b"", reply=inbox)
        found = []
        try:
            while data := (await answers.next_msg(REQUEST_TIMEOUT_S)).data:
                # Each is `<account>|<token>`; an empty message ends them.
                _, _, text = data.decode(errors="replace").partition("|")
                try:
                    found.append(read_token(text))
                except TokenInvalid as error:
                    log.debug("ignored an unreadable account: %s", error)
        except (NatsTimeoutError, NoRespondersError) as error:
            raise NatsUnavailable(f"NATS did not list its accounts: {error!r}") from error
        finally:
            await answers.unsubscribe()
        return [token for token in found if token.issuer == self._keys.operator.public]

    async def ensure(self, account: Token) -> None:
        """Create or update an account, unless NATS has it as it is."""
        known = await self.held(account.subject)
        account = keeping_revocations(account, known) if known else account
        if known and account.says_the_same(known):
            return
        # NATS ignores a token that it has, or had before it deleted the account: each one differs, and is newer.
        issued_s = max(account.issued_s, known.issued_s + 1) if known else account.issued_s
        token = replace(account, issued_s=issued_s).signed(self._keys.operator, entropy=os.urandom(SEED_BYTES))
        await self._change(CLAIMS_UPDATE, token, account.name)

    async def forget(self, account: str) -> None:
        """Delete an account; NATS closes its connections."""
        operator = self._keys.operator
        order = Token(name="forget", subject=operator.public, issued_s=int(time.time()), nats={"accounts": [account]})
        await self._change(CLAIMS_DELETE, order.signed(operator), account)

    async def _change(self, subject: str, token: str, what: str) -> None:
        answer = parsed(await self._request(subject, token))
        if refusal := answer.get("error"):
            raise NatsUnavailable(f"NATS refused {subject} for {what}: {refusal}")

    async def _request(self, subject: str, token: str = "") -> Msg:
        try:
            return await self._system.request(subject, token)
        except NoRespondersError as error:
            raise NatsUnavailable(_NO_RESOLVER) from error


_NO_RESOLVER = "NATS accepts no accounts: its configuration needs `resolver: {type: full, allow_delete: true, ...}`"

"""The trust of a NATS server in the operator: the operator's seed, and the server's configuration for it."""

import json

from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import Claims, Kind, Signer, Token

SEED_FILE = "operator.seed"
TRUST_FILE = "trust.conf"
SYSTEM_CREDENTIALS_FILE = "system.creds"

CLAIMS_UPDATE = "$SYS.REQ.CLAIMS.UPDATE"
CLAIMS_DELETE = "$SYS.REQ.CLAIMS.DELETE"
CLAIMS_PACK = "$SYS.REQ.CLAIMS.PACK"


def claims_lookup(account: str) -> str:
    """Return the subject of requests for an account's token."""
    return f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"


def new_keys(entropy: bytes) -> Keys:
    """Make the keys of an installation from 32 random bytes."""
    return Keys(Signer.of(Kind.OPERATOR, entropy))


def trust_configuration(keys: Keys, *, now_s: int) -> str:
    """Return the part of the server's configuration with its operator and system account. It contains no secret."""
    system = keys.system_account().public
    operator: Claims = {"type": "operator", "system_account": system}
    limits: Claims = {"subs": -1, "data": -1, "payload": -1, "conn": 16, "imports": 0, "exports": -1, "leaf": -1}
    account: Claims = {"type": "account", "limits": limits | {"wildcards": True, "disallow_bearer": True}}
    configuration = {
        "operator": Token(name="rollfleet", subject=keys.operator.public, issued_s=now_s, nats=operator).signed(
            keys.operator
        ),
        "system_account": system,
        "resolver_preload": {
            system: Token(name="system", subject=system, issued_s=now_s, nats=account).signed(keys.operator)
        },
    }
    # NATS reads JSON too, but an included file must not have the outer braces.
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in configuration.items())


def secret_files(keys: Keys, *, now_s: int) -> dict[str, str]:
    """Return the files of an installation's Secret."""
    return {SEED_FILE: keys.operator.seed, TRUST_FILE: trust_configuration(keys, now_s=now_s)}

"""The users of a job: one a role, bound to what its role may do, for a time."""

from dataclasses import dataclass

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role, permissions
from rollfleet_api.streams import subjects_of
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import (
    Claims,
    Kind,
    Signer,
    Token,
    TokenInvalid,
    credentials_file,
    read_credentials,
    read_token,
)

SUBSCRIPTIONS = 64  # of one connection; a learner and a worker have fewer than ten


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """How long credentials are good for.

    Attributes:
        life_s: From when they are made until NATS refuses them.
        renew_after: The share of their life after which others are made. The rest is for the kubelet, which brings
            them to the pods within some minutes, and for an operator that is away.
    """

    life_s: int = 24 * 3600
    renew_after: float = 0.5


def role_credentials(
    job: CollectorJob,
    role: Role,
    keys: Keys,
    validity: Validity,
    *,
    mounted: bytes | None,
    now_s: int,
    entropy: bytes,
) -> bytes:
    """The credentials file of a role.

    Args:
        job: Whose subjects it opens.
        role: Worker or learner.
        keys: What it is signed with.
        validity: How long it is good for.
        mounted: The file that the pods have. It is returned while it says what it should and is fresh enough.
        now_s: Seconds since the epoch.
        entropy: 32 random bytes, for a key that nobody can derive.
    """
    subjects = subjects_of(job)
    issuer = keys.issuer(subjects, role, job.metadata.uid or "")
    nats = _user(job, role, account=keys.account(subjects, role).public)
    if mounted and _still_good(mounted, issuer.public, nats, validity, now_s):
        return mounted
    user = Signer.of(Kind.USER, entropy)
    token = Token(
        name=f"{subjects.key} {role}",
        subject=user.public,
        issued_s=now_s,
        expires_s=now_s + validity.life_s,
        nats=nats,
    )
    return credentials_file(token.signed(issuer), user)


def administrator(account: Signer, *, now_s: int, entropy: bytes) -> tuple[str, Signer]:
    """The operator's own user in an account. Its key is made for one connection and never leaves the process."""
    user = Signer.of(Kind.USER, entropy)
    nats: Claims = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    return Token(name="operator", subject=user.public, issued_s=now_s, nats=nats).signed(account), user


def _still_good(mounted: bytes, issuer: str, nats: Claims, validity: Validity, now_s: int) -> bool:
    try:
        token = read_token(read_credentials(mounted)[0])
    except TokenInvalid:
        return False
    return (
        token.issuer == issuer
        and token.nats == nats
        and token.expires_s == token.issued_s + validity.life_s
        and token.issued_s <= now_s < token.issued_s + validity.life_s * validity.renew_after
    )


def _user(job: CollectorJob, role: Role, *, account: str) -> Claims:
    allowed = permissions(subjects_of(job), role)
    return {
        "type": "user",
        "issuer_account": account,
        "pub": {"allow": list(allowed.publish)},
        "sub": {"allow": list(allowed.subscribe)},
        "subs": SUBSCRIPTIONS,
        "data": -1,
        "payload": -1,
        "allowed_connection_types": ["STANDARD"],
    }

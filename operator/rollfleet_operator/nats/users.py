"""The NATS users of a job: one for each role, with the role's permissions and a limited validity."""

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
from rollfleet_operator.rotation import rotation_s

SUBSCRIPTIONS = 64  # of one connection; learners and workers need fewer than ten


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """The validity of credentials.

    Attributes:
        life_s: Seconds from their creation until NATS refuses them.
        renew_after: Fraction of `life_s` after which they are renewed. The rest is for the kubelet, which takes some
            minutes to bring them to the pods, and for times without an operator.
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
    """Return the credentials file of a role.

    Args:
        job: The job whose subjects it grants.
        role: Worker or learner.
        keys: The keys that sign it.
        validity: Its validity.
        mounted: The file that pods have now. It is returned if it is correct and fresh enough.
        now_s: The time, seconds since the epoch.
        entropy: 32 random bytes for a new key.
    """
    subjects = subjects_of(job)
    issuer = keys.issuer(subjects, job.metadata.uid or "")
    nats = _user(job, role, account=keys.account(subjects).public)
    if mounted and _still_good(mounted, issuer.public, nats, validity, now_s, rotation_s(job, now_s) or 0):
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
    """Make the operator's own user in an account, for one connection. Its key never leaves the process."""
    user = Signer.of(Kind.USER, entropy)
    nats: Claims = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    return Token(name="operator", subject=user.public, issued_s=now_s, nats=nats).signed(account), user


def _still_good(mounted: bytes, issuer: str, nats: Claims, validity: Validity, now_s: int, rotated_s: int) -> bool:
    try:
        token = read_token(read_credentials(mounted)[0])
    except TokenInvalid:
        return False
    return (
        token.issuer == issuer
        and token.nats == nats
        and token.expires_s == token.issued_s + validity.life_s
        and rotated_s <= token.issued_s <= now_s < token.issued_s + validity.life_s * validity.renew_after
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

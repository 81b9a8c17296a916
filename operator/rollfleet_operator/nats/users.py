"""The NATS users of a job: one for each role, with the role's permissions and a limited validity."""

import zlib

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role, permissions
from rollfleet_api.streams import subjects_of
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import Claims, Kind, Signer, Token, credentials_file
from rollfleet_operator.rotation import rotation_s

SUBSCRIPTIONS = 64  # of one connection; learners and workers need fewer than ten


def issued_at(job: CollectorJob, life_s: int, now_s: int) -> int:
    """Return when a job's present credentials are issued: at its last renewal, or at its last rotation on request.

    They are renewed after half of their life, `life_s` seconds. The rest is for the kubelet, which takes some minutes
    to bring them to the pods, and for times without an operator.
    Each job is renewed at times of its own. They follow from its UID, so that an operator that restarts changes none.
    """
    every_s = max(1, life_s // 2)
    own_s = zlib.crc32((job.metadata.uid or "").encode()) % every_s
    return max(now_s - (now_s - own_s) % every_s, rotation_s(job, now_s) or 0)


def role_credentials(job: CollectorJob, role: Role, keys: Keys, *, issued_s: int, life_s: int) -> bytes:
    """Return the credentials file of a role: always the same for the same arguments.

    NATS refuses it `life_s` seconds after `issued_s`, the time of issue in seconds since the epoch.
    """
    subjects, uid = subjects_of(job), job.metadata.uid or ""
    user = keys.user(subjects, uid, role, issued_s)
    token = Token(
        name=f"{subjects.key} {role}",
        subject=user.public,
        issued_s=issued_s,
        expires_s=issued_s + life_s,
        nats=_user(job, role, account=keys.account(subjects).public),
    )
    return credentials_file(token.signed(keys.issuer(subjects, uid)), user)


def administrator(account: Signer, *, now_s: int, entropy: bytes) -> tuple[str, Signer]:
    """Make the operator's own user in an account, for one connection. Its key never leaves the process."""
    user = Signer.of(Kind.USER, entropy)
    nats: Claims = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    return Token(name="operator", subject=user.public, issued_s=now_s, nats=nats).signed(account), user


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

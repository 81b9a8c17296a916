"""The account of a job: its limits, and the tags by which an operator knows it."""

from dataclasses import replace

from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import subjects_of
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import Claims, Token, tagged
from rollfleet_operator.rotation import revoked_s

JOB_TAG, UID_TAG, INSTALLATION_TAG = "rollfleet-job", "rollfleet-uid", "rollfleet-installation"

SPARE_CONNECTIONS = 32  # evaluators, recorders, users, the operator
_UNLIMITED = -1


def job_account(
    job: CollectorJob, keys: Keys, state_bytes: int, *, now_s: int, installation: str = "", renewed_s: int = 0
) -> Token:
    """Return the account of a job, with at most `state_bytes` of state.

    `renewed_s`: when the newest credentials of the job were issued, seconds since the epoch.
    """
    subjects, uid = subjects_of(job), job.metadata.uid or ""
    made_by = [f"{INSTALLATION_TAG}:{installation}"] if installation else []
    return Token(
        name=subjects.key,
        subject=keys.account(subjects).public,
        issued_s=now_s,
        nats={
            "type": "account",
            "signing_keys": [keys.issuer(subjects, uid).public],
            "tags": [f"{JOB_TAG}:{subjects.key}", f"{UID_TAG}:{uid}", *made_by],
            "limits": _limits(job, state_bytes),
            **_revocations(job, now_s, renewed_s),
        },
    )


def keeping_revocations(account: Token, known: Token) -> Token:
    """Return an account that refuses what NATS refuses already: a later request, or none, must not lift that."""
    before, now = (each.nats.get("revocations") or {} for each in (known, account))
    if not isinstance(before, dict) or not isinstance(now, dict):
        return account
    newest = {**now, **{user: at for user, at in before.items() if int(str(at)) > int(str(now.get(user, 0)))}}
    return replace(account, nats={**account.nats, "revocations": newest}) if newest != now else account


def job_of(account: Token) -> Subjects | None:
    """Return the job of an account; None: it belongs to no job."""
    key = tagged(account).get(JOB_TAG)
    return Subjects.parse(key) if key else None


def uid_of(account: Token) -> str:
    """Return the UID of an account's job."""
    return tagged(account).get(UID_TAG, "")


def installation_of(account: Token) -> str:
    """Return the id of the installation that made an account; empty: it has none."""
    return tagged(account).get(INSTALLATION_TAG, "")


def _revocations(job: CollectorJob, now_s: int, renewed_s: int) -> Claims:
    """Return the claim that ends all users of before a rotation. NATS disconnects them."""
    since_s = revoked_s(job, now_s, renewed_s)
    return {} if since_s is None else {"revocations": {"*": since_s - 1}}  # NATS includes the second itself


def _limits(job: CollectorJob, state_bytes: int) -> Claims:
    """Return the account's limits.

    The bytes of its stream have their bound there: with one of the account, NATS would reserve them twice. A learner
    can make JetStream send requests in its name, which may change the stream: hence the limit of a stream.
    """
    evaluating = job.spec.evaluation.workers if job.spec.evaluation else 0
    return {
        # Workers count twice: the server counts a lost connection until it notices the loss. A learner may have as
        # many ranks as workers.
        "conn": 3 * job.spec.workers + 2 * evaluating + SPARE_CONNECTIONS,
        "imports": 0,
        "exports": 0,
        "leaf": 0,
        "subs": _UNLIMITED,
        "data": _UNLIMITED,
        "payload": _UNLIMITED,
        "disallow_bearer": True,
        "mem_storage": _UNLIMITED,
        "disk_storage": 0,
        "mem_max_stream_bytes": state_bytes,
        "max_bytes_required": True,
        "streams": 1,
        "consumer": 1,  # NATS takes 0 for no limit
    }

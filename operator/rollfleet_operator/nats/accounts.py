"""A job's two accounts: their limits, exports and imports."""

from dataclasses import dataclass, replace

from rollfleet_api.job import CollectorJob, Storage
from rollfleet_api.permissions import Role, inbox_prefix, permissions
from rollfleet_api.streams import subjects_of
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import Claims, Signer, Token, tagged
from rollfleet_operator.rotation import revoked_s

JOB_TAG, UID_TAG, ROLE_TAG = "rollfleet-job", "rollfleet-uid", "rollfleet-role"
INSTALLATION_TAG = "rollfleet-installation"

STREAMS = 2
SPARE_CONSUMERS = 16  # besides one for each rank of the learner, at most as many as workers
LEARNER_CONNECTIONS = 64  # evaluators, recorders, users, the operator
SPARE_CONNECTIONS = 16
_UNLIMITED = -1
RESPONSE_NS = 5_000_000_000  # clients wait no longer for a reply
NO_RESPONSE_NS = 100_000_000  # for requests that no client answers
_ALWAYS_S = 1  # time of issue of activations: the same at each reconciliation


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimits:
    """The limits of an account besides those of its batches.

    Attributes:
        state_bytes: The most bytes of a job's state: two versions of the weights, and a little more.
    """

    state_bytes: int = 1 << 30


def job_accounts(
    job: CollectorJob, keys: Keys, *, now_s: int, installation: str = "", renewed_s: int = 0
) -> tuple[Token, Token]:
    """Return the account of a job's streams and that of its workers, in the order of their creation.

    `renewed_s`: when the newest credentials of the job were issued, seconds since the epoch.
    """
    subjects = subjects_of(job)
    uid = job.metadata.uid or ""
    services, streams = _across(subjects)
    connections = 2 * job.spec.workers + LEARNER_CONNECTIONS  # a learner may have as many ranks as workers
    home, workers = (keys.account(subjects, role) for role in (Role.LEARNER, Role.WORKER))
    return (
        Token(
            name=subjects.key,
            subject=home.public,
            issued_s=now_s,
            nats={
                **_account(keys, subjects, Role.LEARNER, uid, installation),
                **_revocations(job, now_s, renewed_s),
                "limits": _storage(job) | _limits(connections=connections, exports=True),
                "exports": [
                    *(_export(each, "service") for each in (*services, subjects.state_info)),
                    *(_export(each, "stream") for each in streams),
                ],
            },
        ),
        Token(
            name=f"{subjects.key} workers",
            subject=workers.public,
            issued_s=now_s,
            nats={
                **_account(keys, subjects, Role.WORKER, uid, installation),
                **_revocations(job, now_s, renewed_s),
                # Twice, because the server counts a lost connection until it notices the loss.
                "limits": _limits(connections=2 * _workers(job) + SPARE_CONNECTIONS, imports=True),
                "imports": [
                    *(_import(each, "service", home, workers.public) for each in services),
                    # Under its own name, JetStream would answer for the workers' account, which has no JetStream.
                    _import(subjects.state_info, "service", home, workers.public, local=subjects.exists),
                    *(_import(each, "stream", home, workers.public) for each in streams),
                ],
            },
        ),
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


def _workers(job: CollectorJob) -> int:
    return job.spec.workers + (job.spec.evaluation.workers if job.spec.evaluation else 0)


def _across(subjects: Subjects) -> tuple[list[str], list[str]]:
    """Return the subjects that workers send to the other account, and those that they receive: all but their inbox."""
    roles = (Role.WORKER, Role.EVALUATION)
    sent = dict.fromkeys(subject for role in roles for subject in permissions(subjects, role).publish)
    received = dict.fromkeys(subject for role in roles for subject in permissions(subjects, role).subscribe)
    inboxes = [f"{inbox_prefix(subjects, role)}.>" for role in roles]
    return (
        [subject for subject in sent if subject not in (subjects.exists, subjects.state_info)],
        [subject for subject in received if subject not in inboxes],
    )


def _account(keys: Keys, subjects: Subjects, role: Role, uid: str, installation: str) -> Claims:
    made_by = [f"{INSTALLATION_TAG}:{installation}"] if installation else []
    return {
        "type": "account",
        "signing_keys": [keys.issuer(subjects, role, uid).public],
        "tags": [f"{JOB_TAG}:{subjects.key}", f"{UID_TAG}:{uid}", f"{ROLE_TAG}:{role}", *made_by],
    }


def _revocations(job: CollectorJob, now_s: int, renewed_s: int) -> Claims:
    """Return the claim that ends all users of before a rotation. NATS disconnects them."""
    since_s = revoked_s(job, now_s, renewed_s)
    return {} if since_s is None else {"revocations": {"*": since_s - 1}}  # NATS includes the second itself


def _export(subject: str, kind: str) -> Claims:
    # Without a token any account of the server could import it, also one that another team has made.
    export: Claims = {"name": subject, "subject": subject, "type": kind, "token_req": True}
    if kind == "service":
        # NATS keeps the reply subject of each request until it is answered, or for this long: by default two minutes.
        export["response_threshold"] = NO_RESPONSE_NS if ".evaluations." in subject else RESPONSE_NS
    return export


def _import(subject: str, kind: str, exporter: Signer, importer: str, local: str = "") -> Claims:
    activation: Claims = {"type": "activation", "subject": subject, "kind": kind}
    token = Token(name=subject, subject=importer, issued_s=_ALWAYS_S, nats=activation).signed(exporter)
    exported = {"name": subject, "subject": subject, "account": exporter.public, "type": kind}
    return {**exported, "local_subject": local or subject, "token": token}


def _limits(*, connections: int, imports: bool = False, exports: bool = False) -> Claims:
    return {
        "conn": connections,
        "imports": _UNLIMITED if imports else 0,
        "exports": _UNLIMITED if exports else 0,
        "leaf": 0,
        "subs": _UNLIMITED,
        "data": _UNLIMITED,
        "payload": _UNLIMITED,
        "wildcards": exports,
        "disallow_bearer": True,
    }


def _storage(job: CollectorJob) -> Claims:
    """The bytes have their bound in the streams, which no user may create or change: NATS would reserve it twice."""
    in_memory = job.spec.delivery.storage is Storage.MEMORY
    return {
        "mem_storage": _UNLIMITED if in_memory else 0,
        "disk_storage": 0 if in_memory else _UNLIMITED,
        "streams": STREAMS,
        "consumer": job.spec.workers + SPARE_CONSUMERS,
    }

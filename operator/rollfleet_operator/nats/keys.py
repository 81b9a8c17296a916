"""All keys of an installation, derived from one secret: only the operator's seed must be kept and backed up."""

import hashlib
import hmac
from dataclasses import dataclass

from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.tokens import Kind, Signer

_PURPOSE = b"rollfleet.dev/v1"  # separates these keys from others derived from the same seed


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that sign accounts and users.

    Attributes:
        operator: The key whose signatures NATS trusts. In an existing NATS: a signing key of its operator.

    Example:
        >>> keys = Keys(Signer.of(Kind.OPERATOR, bytes(32)))
        >>> keys.account(Subjects.parse("cartpole")).public[0]
        'A'
    """

    operator: Signer

    def system_account(self) -> Signer:
        """Return the key of the system account (of an installation's own NATS)."""
        return self._account("system")

    def account(self, subjects: Subjects) -> Signer:
        """Return the key of a job's account.

        It depends only on the job's name, so that the account can be deleted after the job.
        """
        return self._account("account", subjects.namespace, subjects.job)

    def issuer(self, subjects: Subjects, uid: str) -> Signer:
        """Return the key that signs users of the account; a later job of the same name (another UID) has another."""
        return self._account("issuer", subjects.namespace, subjects.job, uid)

    def user(self, subjects: Subjects, uid: str, role: Role, issued_s: int) -> Signer:
        """Return the key of a role's user, another one for each time of issue."""
        return self._signer(Kind.USER, "user", subjects.namespace, subjects.job, uid, role, str(issued_s))

    def _account(self, *parts: str) -> Signer:
        return self._signer(Kind.ACCOUNT, *parts)

    def _signer(self, kind: Kind, *parts: str) -> Signer:
        # No part contains a zero byte: names are DNS labels, and UIDs come from Kubernetes.
        words = b"\0".join([_PURPOSE, *(part.encode() for part in parts)])
        return Signer.of(kind, hmac.digest(self.operator.secret, words, hashlib.sha256))

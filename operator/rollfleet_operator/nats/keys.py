"""All keys of an installation, from one secret: nothing but the operator's seed must be kept, or backed up."""

import hashlib
import hmac
from dataclasses import dataclass

from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.tokens import Kind, Signer

_PURPOSE = b"rollfleet.dev/v1"  # parts our keys from whatever else somebody derives from the same seed


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that the operator signs with.

    Attributes:
        operator: NATS trusts what it signs. In somebody else's NATS: a signing key of that operator.
    """

    operator: Signer

    def system_account(self) -> Signer:
        """The account of NATS's own requests, in a NATS of ours."""
        return self._account("system")

    def account(self, subjects: Subjects, role: Role) -> Signer:
        """The account that a role of a job is in: the learner's is that of the job's streams.

        It follows from the job's name alone, so that it can be taken away when nothing else is known any more.
        """
        return self._account("account", subjects.namespace, subjects.job, role)

    def issuer(self, subjects: Subjects, role: Role, uid: str) -> Signer:
        """What signs the users of that account. Another job of the same name (another uid) has another one."""
        return self._account("issuer", subjects.namespace, subjects.job, role, uid)

    def _account(self, *parts: str) -> Signer:
        # No part holds a zero byte: names are DNS labels, and Kubernetes makes the uids.
        words = b"\0".join([_PURPOSE, *(part.encode() for part in parts)])
        return Signer.of(Kind.ACCOUNT, hmac.digest(self.operator.secret, words, hashlib.sha256))

"""The configuration of a job's NATS server, on one machine and on a cluster: its users and their permissions."""

from collections.abc import Mapping
from typing import Any, Final

from rollfleet_api.permissions import Role, permissions
from rollfleet_api.subjects import Subjects

OWNER: Final = "owner"
"""The user of the job's owner: it has all permissions."""

USERS: Final = (OWNER, Role.WORKER, Role.LEARNER)

PORT: Final = 4222

_WRITE_DEADLINE: Final = "120s"  # NATS cuts a client that takes no byte for this long: at 10 s, slow links too


def nats_configuration(subjects: Subjects, passwords: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a server's configuration that is the same everywhere. `passwords` has one for each of `USERS`.

    Example:
        >>> found = nats_configuration(Subjects.parse("cartpole"), dict.fromkeys(USERS, "secret"))
        >>> [user["user"] for user in found["authorization"]["users"]]
        ['owner', 'worker', 'learner']
    """
    users: list[dict[str, Any]] = [{"user": OWNER, "password": passwords[OWNER]}]
    for role in (Role.WORKER, Role.LEARNER):
        allowed = permissions(subjects, role)
        may = {"publish": allowed.publish, "subscribe": allowed.subscribe}
        users.append({"user": str(role), "password": passwords[role], "permissions": may})
    return {"authorization": {"users": users}, "write_deadline": _WRITE_DEADLINE}

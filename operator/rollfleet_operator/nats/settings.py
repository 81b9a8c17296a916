"""What the operator is told about NATS: by variables, and by files that are mounted or made by `bootstrap`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from rollfleet_api.environment import CA, URL
from rollfleet_api.quantity import parse_bytes
from rollfleet_operator.nats.accounts import AccountLimits
from rollfleet_operator.nats.connection import Server
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import Signer, TokenInvalid
from rollfleet_operator.nats.trust import SEED_FILE, SYSTEM_CREDENTIALS_FILE
from rollfleet_operator.nats.users import Validity

KEYS: Final = "ROLLFLEET_NATS_KEYS"
STATE_BYTES: Final = "ROLLFLEET_NATS_STATE_BYTES"
LIFE_S: Final = "ROLLFLEET_NATS_CREDENTIALS_SECONDS"


class NatsSettingsInvalid(ValueError):
    """A variable or a file says something that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """How NATS is reached, and what is signed.

    Attributes:
        server: Where it is: for the operator, and for every pod.
        keys: What accounts and users are signed with.
        system: A credentials file of a user in the system account; None: the NATS is ours, and its account too.
        limits: What a job may use besides its batches.
        validity: How long credentials are good for.
    """

    server: Server
    keys: Keys
    system: bytes | None = None
    limits: AccountLimits = field(default_factory=AccountLimits)
    validity: Validity = field(default_factory=Validity)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """What the environment and the files that it names say.

        Raises:
            NatsSettingsInvalid: Something is missing or cannot be used. The text names it.
        """
        url, folder = environ.get(URL), environ.get(KEYS)
        if not url or not folder:
            raise NatsSettingsInvalid(f"set {URL} and {KEYS} (the folder that holds `{SEED_FILE}`)")
        try:
            operator = Signer.from_seed((Path(folder) / SEED_FILE).read_text().strip())
            if not operator.public.startswith("O"):
                raise TokenInvalid(f"{SEED_FILE} is not an operator's: that begins with `SO`")
            system = Path(folder) / SYSTEM_CREDENTIALS_FILE
            ca = environ.get(CA)
            said = cls(
                server=Server(url=url, ca=Path(ca).read_bytes() if ca else None),
                keys=Keys(operator),
                system=system.read_bytes() if system.is_file() else None,
                limits=AccountLimits(state_bytes=parse_bytes(environ.get(STATE_BYTES) or "1Gi")),
                validity=Validity(life_s=int(environ.get(LIFE_S) or Validity().life_s)),
            )
        except (OSError, TokenInvalid, ValueError) as error:
            raise NatsSettingsInvalid(f"what the operator is told about NATS cannot be used: {error}") from error
        return said

"""The operator's settings for NATS, from environment variables and from files (mounted, or written by `bootstrap`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field

from rollfleet_api.address import CA, URL
from rollfleet_api.quantity import parse_bytes
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.tokens import Signer, TokenInvalid
from rollfleet_operator.nats.trust import SEED_FILE, SYSTEM_CREDENTIALS_FILE
from rollfleet_operator.nats_port import Endpoint
from rollfleet_operator.settings import SettingsInvalid, validated

KEYS: Final = "ROLLFLEET_NATS_KEYS"
PUBLIC_URL: Final = "ROLLFLEET_NATS_PUBLIC_URL"
STATE_BYTES: Final = "ROLLFLEET_NATS_STATE_BYTES"
LIFE_S: Final = "ROLLFLEET_NATS_CREDENTIALS_SECONDS"
INSTALLATION: Final = "ROLLFLEET_INSTALLATION"
INSTALLATION_FILE: Final = "ROLLFLEET_INSTALLATION_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """The settings for NATS.

    Attributes:
        endpoint: The address, for the operator and for all pods.
        keys: The keys that sign accounts and users.
        system: Credentials of a user in the system account; None: the installation's own NATS, whose key is known.
        state_bytes: The bytes that NATS reserves for a job: two versions of the weights, and a little more.
        life_s: Seconds from the creation of credentials until NATS refuses them.
        installation: The id of this installation, which tells its jobs from those of others with the same keys; empty:
            no other has them.
    """

    endpoint: Endpoint
    keys: Keys
    system: bytes | None = None
    state_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)] = 64 << 20
    life_s: Annotated[int, Field(gt=0)] = 24 * 3600
    installation: str = ""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from environment variables and the files that they name.

        Raises:
            SettingsInvalid: A value is missing or invalid. The text names it.
        """
        url, folder = environ.get(URL), environ.get(KEYS)
        if not url or not folder:
            raise SettingsInvalid(f"set {URL} and {KEYS} (the folder with `{SEED_FILE}`)")
        try:
            operator = Signer.from_seed((Path(folder) / SEED_FILE).read_text().strip())
            if not operator.public.startswith("O"):
                raise TokenInvalid(f"{SEED_FILE} is not an operator's seed, which begins with `SO`")
            system = Path(folder) / SYSTEM_CREDENTIALS_FILE
            ca, installation = environ.get(CA), environ.get(INSTALLATION_FILE)
            read = {
                "endpoint": Endpoint(
                    url=url, ca=Path(ca).read_bytes() if ca else None, public_url=environ.get(PUBLIC_URL, "")
                ),
                "keys": Keys(operator),
                "system": system.read_bytes() if system.is_file() else None,
                "installation": Path(installation).read_text() if installation else environ.get(INSTALLATION, ""),
            }
        except (OSError, ValueError) as error:
            raise SettingsInvalid(f"the settings for NATS are invalid: {error}") from error
        return validated(cls, {"state_bytes": STATE_BYTES, "life_s": LIFE_S}, environ, **read)

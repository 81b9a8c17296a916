"""Keys that sign, the tokens that they sign (JWT, as NATS has them), and credentials files."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import nkeys
from pydantic import JsonValue

Claims = dict[str, JsonValue]

SEED_BYTES = 32
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_CREDENTIALS = """-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""
_TOKEN_IN_CREDENTIALS = re.compile(r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+------END NATS USER JWT------")
_SEED_IN_CREDENTIALS = re.compile(r"-----BEGIN USER NKEY SEED-----\s+(\S+)\s+------END USER NKEY SEED------")


class TokenInvalid(ValueError):
    """A text that is no token, or no credentials file."""


class Kind(IntEnum):
    """Whom a key stands for; a key says so in its first letter."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


@dataclass(frozen=True, slots=True)
class Signer:
    """A key pair.

    Attributes:
        seed: The secret part, as NATS writes it: `SO...`, `SA...`, `SU...`.
        public: The public part: `O...`, `A...`, `U...`.
    """

    seed: str
    public: str

    @classmethod
    def of(cls, kind: Kind, secret: bytes) -> Self:
        """The key that 32 secret bytes make."""
        return cls.from_seed(nkeys.encode_seed(secret, kind).decode())

    @classmethod
    def from_seed(cls, seed: str) -> Self:
        """The key of a seed.

        Raises:
            TokenInvalid: It is no seed.
        """
        try:
            return cls(seed=seed, public=nkeys.from_seed(seed.encode()).public_key.decode())
        except (nkeys.NkeysError, ValueError) as error:
            raise TokenInvalid(f"no seed of a NATS key: {error!r}") from None

    @property
    def secret(self) -> bytes:
        """The 32 bytes that the seed is made of."""
        return bytes(nkeys.decode_seed(self.seed.encode())[1])

    def sign(self, data: bytes) -> bytes:
        """The signature of the data; the same each time."""
        return bytes(nkeys.from_seed(self.seed.encode()).sign(data))

    def __repr__(self) -> str:
        """Without the secret part: this may end in a log."""
        return f"Signer({self.public})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a token says.

    Attributes:
        name: For people.
        subject: The public key of whom it is about.
        nats: NATS's own claims, with their `type`.
        expires_s: Seconds since the epoch; None: never.
        issuer: The public key that signed it; empty before.
        issued_s: Seconds since the epoch.
    """

    name: str
    subject: str
    nats: Claims
    issued_s: int
    expires_s: int | None = None
    issuer: str = ""

    def signed(self, issuer: Signer) -> str:
        """The token as text."""
        claims: dict[str, Any] = {
            "iat": self.issued_s,
            "iss": issuer.public,
            "sub": self.subject,
            "name": self.name,
            "nats": {**self.nats, "version": 2},
        }
        if self.expires_s is not None:
            claims["exp"] = self.expires_s
        digest = hashlib.sha256(json.dumps(claims, sort_keys=True).encode()).digest()
        claims["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
        body = f"{_part(json.dumps(_HEADER).encode())}.{_part(json.dumps(claims).encode())}"
        return f"{body}.{_part(issuer.sign(body.encode()))}"

    def says_the_same(self, other: "Token") -> bool:
        """Whether two tokens differ in nothing but in when and by whom they were signed."""
        return (self.name, self.subject, self.nats) == (other.name, other.subject, other.nats)


def read_token(text: str) -> Token:
    """What a token says. Its signature is not checked: the server does that.

    Raises:
        TokenInvalid: It is none.
    """
    try:
        _, body, _ = text.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        nats = {name: value for name, value in claims["nats"].items() if name != "version"}
        return Token(
            name=str(claims.get("name", "")),
            subject=str(claims["sub"]),
            nats=nats,
            issued_s=int(claims["iat"]),
            expires_s=int(claims["exp"]) if "exp" in claims else None,
            issuer=str(claims["iss"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenInvalid(f"no NATS token: {error!r}") from None


def credentials_file(token: str, user: Signer) -> bytes:
    """What a client is given: its token, and the key to prove that it is its own."""
    return _CREDENTIALS.format(token=token, seed=user.seed).encode()


def read_credentials(file: bytes) -> tuple[str, Signer]:
    """The token and the key of a credentials file.

    Raises:
        TokenInvalid: It is none.
    """
    text = file.decode(errors="replace")
    token, seed = _TOKEN_IN_CREDENTIALS.search(text), _SEED_IN_CREDENTIALS.search(text)
    if not token or not seed:
        raise TokenInvalid("no NATS credentials file: it holds no token, or no seed")
    return token[1], Signer.from_seed(seed[1])


def tagged(token: Token) -> Mapping[str, str]:
    """The tags `name:value` of a token."""
    tags = token.nats.get("tags")
    found = (str(tag).partition(":") for tag in tags) if isinstance(tags, list) else ()
    return {name: value for name, _, value in found}


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

"""Key pairs, tokens (NATS's JWT) and credentials files."""

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
    """A text is not a token, a seed or a credentials file."""


class Kind(IntEnum):
    """The kind of a key's owner, which is the key's first letter."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


@dataclass(frozen=True, slots=True)
class Signer:
    """A key pair.

    Attributes:
        seed: The secret part in NATS's form: `SO...`, `SA...`, `SU...`.
        public: The public part: `O...`, `A...`, `U...`.

    Example:
        >>> Signer.of(Kind.USER, bytes(SEED_BYTES)).public[0]
        'U'
    """

    seed: str
    public: str

    @classmethod
    def of(cls, kind: Kind, secret: bytes) -> Self:
        """Make a key from 32 secret bytes."""
        return cls.from_seed(nkeys.encode_seed(secret, kind).decode())

    @classmethod
    def from_seed(cls, seed: str) -> Self:
        """Make a key from its seed.

        Raises:
            TokenInvalid: The text is not a seed.
        """
        try:
            return cls(seed=seed, public=nkeys.from_seed(seed.encode()).public_key.decode())
        except (nkeys.NkeysError, ValueError) as error:
            raise TokenInvalid(f"not the seed of a NATS key: {error!r}") from None

    @property
    def secret(self) -> bytes:
        """The seed's 32 bytes."""
        return bytes(nkeys.decode_seed(self.seed.encode())[1])

    def sign(self, data: bytes) -> bytes:
        """Sign data; the signature is deterministic."""
        return bytes(nkeys.from_seed(self.seed.encode()).sign(data))

    def __repr__(self) -> str:
        """Omit the secret part: this may appear in a log."""
        return f"Signer({self.public})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The content of a token.

    Attributes:
        name: A name for people.
        subject: Public key of the account or user.
        nats: NATS's claims, with their `type`.
        expires_s: Time of expiry, seconds since the epoch; None: never.
        issuer: Public key of the signer; empty: not signed yet.
        issued_s: Time of issue, seconds since the epoch.
    """

    name: str
    subject: str
    nats: Claims
    issued_s: int
    expires_s: int | None = None
    issuer: str = ""

    def signed(self, issuer: Signer, *, entropy: bytes = b"") -> str:
        """Sign the token and return its text; with `entropy`, it differs from all others of this content."""
        claims: dict[str, Any] = {
            "iat": self.issued_s,
            "iss": issuer.public,
            "sub": self.subject,
            "name": self.name,
            "nats": {**self.nats, "version": 2},
        }
        if self.expires_s is not None:
            claims["exp"] = self.expires_s
        digest = hashlib.sha256(json.dumps(claims, sort_keys=True).encode() + entropy).digest()
        claims["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
        body = f"{_part(json.dumps(_HEADER).encode())}.{_part(json.dumps(claims).encode())}"
        return f"{body}.{_part(issuer.sign(body.encode()))}"

    def says_the_same(self, other: "Token") -> bool:
        """Return whether two tokens are equal except for times and signer."""
        return (self.name, self.subject, self.nats) == (other.name, other.subject, other.nats)


def read_token(text: str) -> Token:
    """Parse a token. Its signature is not checked: the server does that.

    Raises:
        TokenInvalid: The text is invalid.
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
        raise TokenInvalid(f"not a NATS token: {error!r}") from None


def credentials_file(token: str, user: Signer) -> bytes:
    """Return the credentials file of a user: its token, and the key to prove its identity."""
    return _CREDENTIALS.format(token=token, seed=user.seed).encode()


def read_credentials(file: bytes) -> tuple[str, Signer]:
    """Parse a credentials file into token and key.

    Raises:
        TokenInvalid: The text is invalid.
    """
    text = file.decode(errors="replace")
    token, seed = _TOKEN_IN_CREDENTIALS.search(text), _SEED_IN_CREDENTIALS.search(text)
    if not token or not seed:
        raise TokenInvalid("not a NATS credentials file: the token or the seed is missing")
    return token[1], Signer.from_seed(seed[1])


def tagged(token: Token) -> Mapping[str, str]:
    """Return the tags `name:value` of a token."""
    tags = token.nats.get("tags")
    found = (str(tag).partition(":") for tag in tags) if isinstance(tags, list) else ()
    return {name: value for name, _, value in found}


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

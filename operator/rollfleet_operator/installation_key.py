"""The key of an installation: what its jobs' servers and their clients trust is derived from it and from the job.

So the operator keeps no table and reads no Secret: the same job has the same passwords and the same certificate, from
any operator of the installation. Nothing expires.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rollfleet_api.job import CollectorJob
from rollfleet_operator import names

KEY_BYTES: Final = 32
_PURPOSE: Final = b"rollfleet.dev/v1"  # separates what is derived here from other uses of the same key
_SINCE, _FOR_EVER = datetime(2026, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True)
class InstallationKey:
    """The key of an installation.

    Attributes:
        secret: `KEY_BYTES` random bytes.

    Example:
        >>> InstallationKey(bytes(KEY_BYTES)) == InstallationKey(bytes(KEY_BYTES))
        True
    """

    secret: bytes = field(repr=False)

    def password(self, job: CollectorJob, user: str) -> str:
        """Return a user's password on the job's server: 256 bits, in base64."""
        return base64.urlsafe_b64encode(self._derived("password", *_of(job), user)).rstrip(b"=").decode()

    def authority(self, job: CollectorJob) -> bytes:
        """Return the certificate of a job's own authority (PEM). `names.ROTATE` keeps it: clients read it once."""
        return self._authority(job.metadata.uid or "")

    @lru_cache(maxsize=1024)  # noqa: B019  # as below
    def _authority(self, uid: str) -> bytes:
        own = self._key("authority", uid)
        builder = self._builder(_name("rollfleet"), own, own, "authority", uid)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return builder.sign(own, None).public_bytes(Encoding.PEM)

    def certificate(self, job: CollectorJob, *hosts: str, mutual: bool = False) -> tuple[bytes, bytes]:
        """Return a certificate of the job, for these names and IP addresses, and its private key (PEM).

        It is that of a server; `mutual`: also of its clients.
        """
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] * mutual)]
        return self._certificate(job.metadata.name, hosts, tuple(usages), *_of(job))

    @lru_cache(maxsize=1024)  # noqa: B019  # of one key, which lives as long as the program
    def _certificate(
        self, subject: str, hosts: tuple[str, ...], usages: tuple[x509.ObjectIdentifier, ...], *job: str
    ) -> tuple[bytes, bytes]:
        own, authority = self._key("certificate", *job, *hosts), self._key("authority", job[0])
        builder = self._builder(_name(subject), own, authority, "certificate", *job, *hosts)
        builder = builder.add_extension(x509.SubjectAlternativeName(map(_host, hosts)), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        signed = builder.sign(authority, None).public_bytes(Encoding.PEM)
        return signed, own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def _builder(
        self, subject: x509.Name, own: Ed25519PrivateKey, authority: Ed25519PrivateKey, *parts: str
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name("rollfleet"))
            .public_key(own.public_key())
            .serial_number(int.from_bytes(self._derived("serial", *parts)[:16]) | 1)
            .not_valid_before(_SINCE)
            .not_valid_after(_FOR_EVER)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )

    def _key(self, *parts: str) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self._derived("key", *parts))

    def _derived(self, *parts: str) -> bytes:
        # No part contains a zero byte: they come from names, UIDs and annotations of Kubernetes.
        return hmac.digest(self.secret, b"\0".join([_PURPOSE, *(part.encode() for part in parts)]), hashlib.sha256)


def _of(job: CollectorJob) -> tuple[str, str]:
    """Return what tells a job from all others, and its credentials from those before `names.ROTATE` changed."""
    return job.metadata.uid or "", job.metadata.annotations.get(names.ROTATE, "")


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

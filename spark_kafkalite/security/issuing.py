"""Makes a certificate authority and certificates for brokers and clients, for ``--secure`` and for tests.

Keys are EC P-256, which costs the broker least in a handshake. An authority lives ten years, a certificate one. Needs
the library ``cryptography``. All functions return PEM text.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.version import install_command

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_DAY: Final = datetime.timedelta(days=1)
_AUTHORITY_DAYS: Final = 3650
_CERTIFICATE_DAYS: Final = 365
# Clocks of other hosts may be behind.
_BEFORE: Final = datetime.timedelta(hours=1)


class KeyAndCertificate(NamedTuple):
    """A private key (PKCS#8, not encrypted) and its certificate."""

    key: bytes
    certificate: bytes


def new_authority(name: str) -> KeyAndCertificate:
    """Return an authority of this name. Raises ConfigError without the library."""
    x509, ec = _libraries()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        _builder(x509, subject, subject, key, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(x509, signs_certificates=True), critical=True)
    )
    return _signed(builder, key, key)


def issue(authority: KeyAndCertificate, name: str, hosts: Iterable[str] = ()) -> KeyAndCertificate:
    """Return a certificate for a broker that is reached as ``hosts``, or for a client without any.

    ``hosts`` are names and addresses. Raises ConfigError without the library, or for an authority that cannot be read.
    """
    from cryptography.hazmat.primitives import serialization

    x509, ec = _libraries()
    try:
        signer = serialization.load_pem_private_key(authority.key, None)
        issuer = x509.load_pem_x509_certificate(authority.certificate)
    except ValueError as error:
        raise ConfigError(f"the authority's key or certificate cannot be read: {error}") from None
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    usages = [x509.ExtendedKeyUsageOID.SERVER_AUTH] if (names := list(hosts)) else []
    builder = (
        _builder(x509, subject, issuer.subject, key, _CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(x509, signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([*usages, x509.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_name(x509, host) for host in names]), False)
    return _signed(builder, key, signer)


def _libraries() -> tuple[Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            f"making certificates needs the library cryptography: {install_command('security')}"
        ) from None
    return x509, ec


def _builder(
    library: Any, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder: x509.CertificateBuilder = (
        library.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(library.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + days * _DAY)
        .add_extension(library.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder


def _key_usage(library: Any, *, signs_certificates: bool) -> x509.KeyUsage:
    usage: x509.KeyUsage = library.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
    return usage


def _name(library: Any, host: str) -> x509.GeneralName:
    try:
        name: x509.GeneralName = library.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = library.DNSName(host)
    return name


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: Any) -> KeyAndCertificate:
    from cryptography.hazmat.primitives import hashes, serialization

    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return KeyAndCertificate(
        key.private_bytes(encoding, form, serialization.NoEncryption()),
        builder.sign(signer, hashes.SHA256()).public_bytes(encoding),
    )

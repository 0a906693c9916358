"""A client's key and the certificates it trusts, from the ``ssl.keystore.*`` and ``ssl.truststore.*`` settings.

PEM (a file, or the text itself), PKCS12 and JKS. A file's content decides which it is, not its ``type`` setting, since
Java's tools write PKCS12 under the name of JKS. The rules are Kafka's
(org.apache.kafka.common.security.ssl.DefaultSslEngineFactory), with one liberty: a PEM key may have any form that
OpenSSL reads, not PKCS#8 only. Only PKCS12 needs the library ``cryptography``.

Errors are ConfigError, name the setting, the file and what is wrong with it, and never a secret.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import ssl
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.jks import MAGIC as JKS_MAGIC
from spark_kafkalite.security.jks import read_jks
from spark_kafkalite.security.tokens import open_at_once
from spark_kafkalite.version import install_command

_LOG = logging.getLogger("spark_kafkalite.client")

# Bundles of all public authorities have a quarter of a MiB.
_MAX_STORE_BYTES: Final = 16 * 1024 * 1024
_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
# PKCS12 is a sequence that begins with the version, 3 (RFC 7292, section 4).
_PKCS12_BEGIN: Final = re.compile(rb"\x30(?:[\x00-\x80]|\x81.|\x82..|\x83...|\x84....)\x02\x01\x03", re.DOTALL)
_PEM_BEGIN: Final = "-----BEGIN "
_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATE_LABELS: Final = ("CERTIFICATE", "X509 CERTIFICATE")
_ENCRYPTED_LABEL: Final = "ENCRYPTED PRIVATE KEY"

# Files about whose permissions something has been said.
_warned_of: set[str] = set()


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A private key (PEM) and its certificate chain (DER), the key's own certificate first.

    ``password`` is that of the PEM text, None when it is not encrypted. ``source`` is the setting that the key is from.
    """

    key: bytes = field(repr=False)
    chain: tuple[bytes, ...] = field(repr=False)
    password: str | None = field(repr=False)
    source: str


@dataclass(frozen=True, slots=True)
class TrustedCertificates:
    """Certificates (DER) that are trusted, and where they are from."""

    certificates: tuple[bytes, ...] = field(repr=False)
    source: str


def client_key(values: Mapping[str, Any]) -> ClientKey | None:
    """Return the key and the chain that the parsed settings describe, None when they describe none."""
    location = values.get("ssl.keystore.location")
    password = values.get("ssl.keystore.password")
    key_password = values.get("ssl.key.password")
    key, chain = values.get("ssl.keystore.key"), values.get("ssl.keystore.certificate.chain")
    if key or chain:
        if not chain:
            raise ConfigError("ssl.keystore.key is given without ssl.keystore.certificate.chain; give both")
        if not key:
            raise ConfigError("ssl.keystore.certificate.chain is given without ssl.keystore.key; give both")
        if location:
            raise ConfigError("ssl.keystore.location and ssl.keystore.key contradict each other; give one of them")
        _refuse_pem_password("ssl.keystore.key", "ssl.keystore.password", password, "; ssl.key.password is the key's")
        certificates = _certificates_in(chain, "ssl.keystore.certificate.chain")
        if not certificates:
            raise ConfigError("ssl.keystore.certificate.chain: holds no certificate; give PEM text")
        return _pem_key(_pem_blocks(key, "ssl.keystore.key"), certificates, key_password, "ssl.keystore.key")
    if not location:
        return None
    found = _stored_key(location, password, key_password)
    _warn_of_readers(location)
    return found


def _stored_key(location: str, password: str | None, key_password: str | None) -> ClientKey:
    source = f"ssl.keystore.location={location}"
    data = _read(location, source)
    form = _form(data, source)
    if form == "PEM":
        _refuse_pem_password(source, "ssl.keystore.password", password, "; ssl.key.password is the key's")
        blocks = _pem_blocks(data.decode("latin-1"), source)
        certificates = _pem_certificates(blocks, source)
        if not certificates:
            raise ConfigError(f"{source}: holds no certificate; a key needs its certificate chain in the same file")
        return _pem_key(blocks, certificates, key_password, source)
    if password is None:
        raise ConfigError(f"{source}: ssl.keystore.password is not set; a file of form {form} needs it")
    if form == "JKS":
        return _jks_key(data, password, key_password, source)
    return _pkcs12_key(data, password, source)


def trusted_certificates(values: Mapping[str, Any]) -> TrustedCertificates | None:
    """Return the certificates that the parsed settings describe, None when they describe none."""
    location = values.get("ssl.truststore.location")
    password = values.get("ssl.truststore.password")
    inline = values.get("ssl.truststore.certificates")
    if inline:
        source = "ssl.truststore.certificates"
        if location:
            raise ConfigError(f"ssl.truststore.location and {source} contradict each other; give one of them")
        _refuse_pem_password(source, "ssl.truststore.password", password, "")
        certificates = _certificates_in(inline, source)
    elif location:
        source = f"ssl.truststore.location={location}"
        data = _read(location, source)
        form = _form(data, source)
        if form == "PEM":
            _refuse_pem_password(source, "ssl.truststore.password", password, "")
            certificates = _certificates_in(data.decode("latin-1"), source)
        elif form == "JKS":
            certificates = _jks_certificates(data, password, source)
        else:
            certificates = _pkcs12_certificates(data, password, source)
    else:
        return None
    if not certificates:
        raise ConfigError(f"{source}: holds no certificate to trust")
    return TrustedCertificates(certificates, source)


def _refuse_pem_password(source: str, setting: str, password: str | None, remedy: str) -> None:
    if password:
        raise ConfigError(f"{source}: PEM has no password of the whole; leave {setting} out{remedy}")


# Files --------------------------------------------------------------------------------------------------------------


def _read(location: str, source: str) -> bytes:
    try:
        # A broker reads what a request names (AlterConfigs): a pipe must not stop its loop.
        with open(location, "rb", opener=open_at_once) as file:
            data = file.read(_MAX_STORE_BYTES + 1) or b""
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL in the name
        raise ConfigError(f"{source!r}: not the name of a file") from None
    if not data:
        raise ConfigError(f"{source}: the file is empty, or a pipe; name a file that holds the store")
    if len(data) > _MAX_STORE_BYTES:
        raise ConfigError(f"{source}: the file has more than {_MAX_STORE_BYTES} bytes, so it is no key or trust store")
    return data


def _warn_of_readers(location: str) -> None:
    """Warn, once per file, when others than its owner may read a private key."""
    try:
        mode = os.stat(location).st_mode & 0o777
    except OSError:  # a file that was there a moment ago, or a pipe
        return
    if mode & 0o077 and location not in _warned_of:
        _warned_of.add(location)
        _LOG.warning(
            "the private key in %s is open to others than its owner (mode %03o); chmod 600 closes it", location, mode
        )


def _form(data: bytes, source: str) -> str:
    if data.startswith(JKS_MAGIC):
        return "JKS"
    if _PKCS12_BEGIN.match(data):
        return "PKCS12"
    if _PEM_BEGIN.encode() in data:
        return "PEM"
    if data.startswith(_JCEKS_MAGIC):
        raise ConfigError(
            f"{source}: a JCEKS file cannot be read here; convert it: keytool -importkeystore -srcstoretype JCEKS "
            "-srckeystore OLD -deststoretype PKCS12 -destkeystore NEW"
        )
    raise ConfigError(f"{source}: the file is none of PEM, PKCS12 and JKS, or damaged")


# PEM ----------------------------------------------------------------------------------------------------------------


def _pem_blocks(text: str, source: str) -> list[tuple[str, str]]:
    """Return the label and the body of each block. Text around them is skipped; a body may lie on one line."""
    # Where a value is one line of JSON or of a properties file, a line break may be written as two characters.
    text = text.replace("\\r", "\n").replace("\\n", "\n")
    blocks = [(match[1], match[2]) for match in _PEM_BLOCK.finditer(text)]
    if len(blocks) != text.count(_PEM_BEGIN):
        raise ConfigError(f"{source}: cut short or damaged: a -----BEGIN line has no -----END line that fits")
    return blocks


def _pem_certificates(blocks: Sequence[tuple[str, str]], source: str) -> tuple[bytes, ...]:
    try:
        return tuple(
            base64.b64decode("".join(body.split()), validate=True)
            for label, body in blocks
            if label in _CERTIFICATE_LABELS
        )
    except ValueError:
        raise ConfigError(f"{source}: a certificate is damaged: it is not base64 text") from None


def _certificates_in(text: str, source: str) -> tuple[bytes, ...]:
    return _pem_certificates(_pem_blocks(text, source), source)


def _pem_key(
    blocks: Sequence[tuple[str, str]], chain: tuple[bytes, ...], password: str | None, source: str
) -> ClientKey:
    keys = [(label, body) for label, body in blocks if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise ConfigError(f"{source}: holds {len(keys) or 'no'} private key{'s' * bool(keys)}; exactly one is needed")
    label, body = keys[0]
    old_encryption = "4,ENCRYPTED" in body  # in header lines before the key itself
    if label == _ENCRYPTED_LABEL or old_encryption:
        if not password:
            raise ConfigError(f"{source}: the private key is encrypted; set ssl.key.password")
    else:
        password = None
    return ClientKey(_pem(label, body if ":" in body else "".join(body.split())), chain, password, source)


def _pem(label: str, body: str) -> bytes:
    # OpenSSL wants lines; what has header lines has them.
    lines = body.strip() if ":" in body else textwrap.fill(body, 64)
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n".encode()


def chain_pem(chain: Sequence[bytes]) -> bytes:
    """Return certificates (DER) as PEM text."""
    return "".join(ssl.DER_cert_to_PEM_cert(certificate) for certificate in chain).encode()


# JKS ----------------------------------------------------------------------------------------------------------------


def _jks_key(data: bytes, password: str, key_password: str | None, source: str) -> ClientKey:
    try:
        keys = [key for key in read_jks(data, password).keys if key.chain]
    except ValueError as error:
        raise ConfigError(f"{source}: {error} (see ssl.keystore.password)") from None
    if not keys:
        raise ConfigError(f"{source}: holds no private key with a certificate")
    # Java offers the first that fits what the broker asks for.
    key = keys[0]
    try:
        private_key = key.private_key(password if key_password is None else key_password)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}, alias {key.alias!r} (see ssl.key.password)") from None
    pem = _pem("PRIVATE KEY", base64.b64encode(private_key).decode())
    others = ", ".join(repr(other.alias) for other in keys[1:])
    chosen = f"{source}, alias {key.alias!r}" + (f" (the first; there are also {others})" if others else "")
    return ClientKey(pem, key.chain, None, chosen)


def _jks_certificates(data: bytes, password: str | None, source: str) -> tuple[bytes, ...]:
    try:
        store = read_jks(data, password)
    except ValueError as error:
        raise ConfigError(f"{source}: {error} (see ssl.truststore.password)") from None
    # Java trusts the certificate of a private key, too (sun.security.validator.TrustStoreUtil).
    return store.certificates + tuple(key.chain[0] for key in store.keys if key.chain)


# PKCS12 -------------------------------------------------------------------------------------------------------------


def _load_pkcs12(data: bytes, password: str | None, source: str, setting: str) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{source}: a PKCS12 file needs the library cryptography: {install_command('security')}; PEM does without"
        ) from None
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except UnsupportedAlgorithm as error:
        raise ConfigError(f"{source}: {error}; write the file again with a recent keytool or openssl") from None
    except (ValueError, TypeError):
        if password is None:
            raise ConfigError(f"{source}: {setting} is not set; a file of form PKCS12 needs it") from None
        raise ConfigError(f"{source}: wrong password, or the file is damaged (see {setting})") from None


def _pkcs12_key(data: bytes, password: str, source: str) -> ClientKey:
    store = _load_pkcs12(data, password, source, "ssl.keystore.password")
    if store.key is None or store.cert is None:
        raise ConfigError(f"{source}: holds no private key with a certificate")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [store.cert.certificate]
    others = [other.certificate for other in store.additional_certs]
    # The file may hold others: of more keys, and of authorities that are trusted.
    while chain[-1].issuer != chain[-1].subject:
        issuer = next((other for other in others if other.subject == chain[-1].issuer), None)
        if issuer is None or issuer in chain:
            break
        chain.append(issuer)
    return ClientKey(key, tuple(each.public_bytes(Encoding.DER) for each in chain), None, source)


def _pkcs12_certificates(data: bytes, password: str | None, source: str) -> tuple[bytes, ...]:
    store = _load_pkcs12(data, password, source, "ssl.truststore.password")
    from cryptography.hazmat.primitives.serialization import Encoding

    own = [] if store.cert is None else [store.cert]
    return tuple(each.certificate.public_bytes(Encoding.DER) for each in (*store.additional_certs, *own))

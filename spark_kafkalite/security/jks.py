"""Reads Java's old key store format (JKS); nothing here knows of settings or files.

The format, big-endian: magic FEEDFEED, version 2, count, then as many entries; a SHA-1 digest of the password and all
of that ends the file. An entry is a tag, an alias and a time, then for a private key (1) the protected key and its
certificates, for a trusted certificate (2) one certificate. A key is protected by a stream of SHA-1 digests over the
password. Source: sun.security.provider.JavaKeyStore, sun.security.provider.KeyProtector.

Names and texts are Java's "modified UTF-8". Lengths are compared with the bytes left before they are used.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

MAGIC: Final = b"\xfe\xed\xfe\xed"

_VERSION: Final = 2
_PRIVATE_KEY: Final = 1
_TRUSTED_CERTIFICATE: Final = 2
_DIGEST_BYTES: Final = hashlib.sha1().digest_size
# Put into the digest of every file by its inventor, against plain digests of password and content.
_WHITENER: Final = b"Mighty Aphrodite"
# 1.3.6.1.4.1.42.2.17.1.1 as an algorithm identifier, parameters NULL.
_KEY_PROTECTOR: Final = bytes.fromhex("300e060a2b060104012a021101010500")


@dataclass(frozen=True, slots=True)
class JksKey:
    """A private key as the file has it, and its certificates (DER), the key's own first."""

    alias: str
    protected: bytes = field(repr=False)
    chain: tuple[bytes, ...] = field(repr=False)

    def private_key(self, password: str) -> bytes:
        """Return the key in PKCS#8 form (DER). Raises ValueError for a wrong password, or damage."""
        sealed = _protected_bytes(self.protected)
        if len(sealed) <= 2 * _DIGEST_BYTES:
            raise ValueError("a private key is cut short")
        salt, cipher, check = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:-_DIGEST_BYTES], sealed[-_DIGEST_BYTES:]
        secret = _password_bytes(password)
        stream, block = bytearray(), salt
        while len(stream) < len(cipher):
            block = hashlib.sha1(secret + block).digest()
            stream += block
        plain = bytes(mine ^ theirs for mine, theirs in zip(stream, cipher, strict=False))
        if not hmac.compare_digest(hashlib.sha1(secret + plain).digest(), check):
            raise ValueError("wrong password of a private key")
        return plain


@dataclass(frozen=True, slots=True)
class JksStore:
    """What a file holds, in its order."""

    keys: tuple[JksKey, ...]
    certificates: tuple[bytes, ...]


def read_jks(data: bytes, password: str | None) -> JksStore:
    """Return what the file ``data`` holds. Without a password its digest is not checked, as in Java.

    Raises ValueError for a wrong password, or for what is not such a file.
    """
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    rest = _Rest(body)
    if rest.take(len(MAGIC)) != MAGIC or rest.number(4) != _VERSION:
        raise ValueError("not a JKS file of version 2")
    # Before the entries: what a wrong password and damage have in common is said once.
    if password is not None and not hmac.compare_digest(
        hashlib.sha1(_password_bytes(password) + _WHITENER + body).digest(), digest
    ):
        raise ValueError("wrong password, or the file is damaged")
    keys, certificates = [], []
    for _ in range(rest.number(4)):
        tag = rest.number(4)
        alias = rest.text()
        rest.take(8)  # when the entry was made
        if tag == _PRIVATE_KEY:
            protected = rest.take(rest.number(4))
            keys.append(JksKey(alias, protected, tuple(rest.certificate() for _ in range(rest.number(4)))))
        elif tag == _TRUSTED_CERTIFICATE:
            certificates.append(rest.certificate())
        else:
            raise ValueError(f"damaged: an entry is of kind {tag}")
    if rest.left:
        raise ValueError(f"damaged: {rest.left} bytes follow its last entry")
    return JksStore(tuple(keys), tuple(certificates))


class _Rest:
    """The bytes that have not been read yet."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise ValueError("damaged, or cut short")
        self._position += length
        return self._data[self._position - length : self._position]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def text(self) -> str:
        return self.take(self.number(2)).decode("utf-8", "replace")

    def certificate(self) -> bytes:
        self.text()  # its type, always X.509
        return self.take(self.number(4))


def _password_bytes(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")


def _protected_bytes(data: bytes) -> bytes:
    """Return the octets of an EncryptedPrivateKeyInfo (RFC 5208, section 6) that JKS's own algorithm made."""
    algorithm_and_octets = _der_content(data, 0x30)
    if not algorithm_and_octets.startswith(_KEY_PROTECTOR):
        raise ValueError("a private key is protected in an unknown way, or damaged")
    return _der_content(algorithm_and_octets[len(_KEY_PROTECTOR) :], 0x04)


def _der_content(data: bytes, tag: int) -> bytes:
    """Return the content of the one element that ``data`` is."""
    if len(data) < 2 or data[0] != tag:
        raise ValueError("a private key is damaged")
    width = data[1] & 0x7F if data[1] & 0x80 else 0
    length = int.from_bytes(data[2 : 2 + width], "big") if width else data[1]
    content = data[2 + width :]
    if len(content) != length:
        raise ValueError("a private key is damaged")
    return content

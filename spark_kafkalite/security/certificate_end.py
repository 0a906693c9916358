"""When a certificate ends, read from its DER: the standard library returns it for a peer's certificate only.

Reads what is on the way there, and leaves it to OpenSSL whether the certificate is one: what comes here has been loaded
into a context. Source: RFC 5280, section 4.1.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
# Serial number, algorithm, issuer.
_BEFORE_VALIDITY: Final = 3


def ends_s(certificate: bytes) -> float:
    """Return the last moment of a certificate (DER) in seconds since 1970. Raises ValueError for other bytes."""
    at = _into(certificate, _into(certificate, 0))
    if certificate[at : at + 1] == bytes([_VERSION]):
        at = _element(certificate, at)[2]
    for _ in range(_BEFORE_VALIDITY):
        at = _element(certificate, at)[2]
    not_before = _into(certificate, at)
    tag, start, end = _element(certificate, _element(certificate, not_before)[2])
    text = certificate[start:end].decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of the year stand for 1950 to 2049.
        text = ("19" if text >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"no time has the tag {tag:#x}")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _into(data: bytes, at: int) -> int:
    tag, start, _ = _element(data, at)
    if tag != _SEQUENCE:
        raise ValueError(f"a sequence has not the tag {tag:#x}")
    return start


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Return an element's tag, and where its content starts and ends."""
    if at + 2 > len(data):
        raise ValueError("it ends too early")
    length, start = data[at + 1], at + 2
    if length >= 0x80:
        count = length - 0x80
        length, start = int.from_bytes(data[start : start + count], "big"), start + count
    if start + length > len(data):
        raise ValueError("it ends too early")
    return data[at], start, start + length

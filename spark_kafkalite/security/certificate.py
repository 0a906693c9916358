"""The content of a certificate, read from its DER: its begin and end, its subject as Java writes it, and its names.

The standard library returns that for a peer's certificate only, and the subject without the types of its values, which
Java's text of it depends on. Reads what is on the way there, and leaves it to OpenSSL whether the certificate is one:
what comes here has been loaded into a context, or has been verified. Source: RFC 5280, sections 4.1 and 4.2.

Every function takes a certificate (DER) and raises ValueError for other bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_ID: Final = 0x06
_OCTETS: Final = 0x04
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
# Serial number, algorithm, issuer.
_BEFORE_VALIDITY: Final = 3
_ALTERNATIVE_NAMES: Final = "2.5.29.17"

# The attribute types that RFC 2253 has names for, as Java knows them (sun.security.x509.AVAKeyword).
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# The types of text: UTF8, Printable, T61, IA5, General and BMP.
_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_ESCAPED: Final = frozenset(',=+<>#;"\\')


def begins_s(certificate: bytes) -> float:
    """Return the first moment of a certificate in seconds since 1970."""
    return _validity(certificate)[0]


def ends_s(certificate: bytes) -> float:
    """Return the last moment of a certificate in seconds since 1970."""
    return _validity(certificate)[1]


def subject_text(certificate: bytes) -> str:
    """Return the subject as Java's ``X500Principal.getName()`` does (RFC 2253): ``CN=a,OU=b,O=c``.

    The last part comes first. A value whose type has no name, or that is no text, is ``#`` and its DER in hexadecimal.
    """
    at = _validity_at(certificate)
    _, start, end = _element(certificate, _element(certificate, at)[2])
    parts = []
    for tag, part_start, part_end in _elements(certificate, start, end):
        if tag != _SET:
            raise ValueError(f"a part of a name has not the tag {tag:#x}")
        pairs = _elements(certificate, part_start, part_end)
        parts.append("+".join(_attribute_text(certificate, first, last) for _, first, last in pairs))
    return ",".join(reversed(parts))


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """Return the alternative names of the subject, each as its DER."""
    at = _element(certificate, _element(certificate, _validity_at(certificate))[2])[2]
    _, _, end = _element(certificate, _into(certificate, 0))
    # The key, and ids of issuer and subject, come before the extensions.
    for tag, start, _ in _elements(certificate, at, end):
        if tag == _EXTENSIONS:
            first, last = _element(certificate, start)[1:]
            for _, extension_start, extension_end in _elements(certificate, first, last):
                kind, *_, value = _elements(certificate, extension_start, extension_end)
                if _object_id(certificate[kind[1] : kind[2]]) == _ALTERNATIVE_NAMES and value[0] == _OCTETS:
                    names = certificate[value[1] : value[2]]
                    _, names_start, names_end = _element(names, 0)
                    return frozenset(
                        bytes([name]) + names[begin:finish]
                        for name, begin, finish in _elements(names, names_start, names_end)
                    )
    return frozenset()


def _validity_at(certificate: bytes) -> int:
    """Return where the validity starts."""
    at = _into(certificate, _into(certificate, 0))
    if certificate[at : at + 1] == bytes([_VERSION]):
        at = _element(certificate, at)[2]
    for _ in range(_BEFORE_VALIDITY):
        at = _element(certificate, at)[2]
    return at


def _validity(certificate: bytes) -> tuple[float, float]:
    begin_at = _into(certificate, _validity_at(certificate))
    return _time(certificate, begin_at), _time(certificate, _element(certificate, begin_at)[2])


def _time(certificate: bytes, at: int) -> float:
    tag, start, end = _element(certificate, at)
    text = certificate[start:end].decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of the year stand for 1950 to 2049.
        text = ("19" if text >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"no time has the tag {tag:#x}")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _attribute_text(data: bytes, start: int, end: int) -> str:
    """Return an attribute of a name as text. Source: sun.security.x509.AVA.toRFC2253String."""
    (kind, kind_start, kind_end), (tag, value_start, value_end) = _elements(data, start, end)
    if kind != _OBJECT_ID:
        raise ValueError(f"a type of attribute has not the tag {kind:#x}")
    object_id = _object_id(data[kind_start:kind_end])
    keyword = _KEYWORDS.get(object_id)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or object_id}=#{data[kind_end:value_end].hex()}"
    # Also where it is not UTF-8: the text has to be Java's, by which principals are named.
    value = data[value_start:value_end].decode("utf-8", "replace")
    escaped = "".join("\\" + each if each in _ESCAPED else "\\00" if each == "\0" else each for each in value)
    within = escaped.strip(" \r")
    if not within:
        return f"{keyword}=" + "".join("\\" + each for each in escaped)
    before, _, after = escaped.partition(within)
    return f"{keyword}=" + "".join("\\" + each for each in before) + within + "".join("\\" + each for each in after)


def _object_id(data: bytes) -> str:
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("an object id is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _into(data: bytes, at: int) -> int:
    tag, start, _ = _element(data, at)
    if tag != _SEQUENCE:
        raise ValueError(f"a sequence has not the tag {tag:#x}")
    return start


def _elements(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the elements between two places."""
    while at < end:
        element = _element(data, at)
        yield element
        at = element[2]


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

"""JSON in the registry's nodes, read with distrust: what a node holds may be another program's, or damaged.

Each reader checks one kind of value, and its range; :class:`reading` turns what they raise into MalformedNode, which
names the node.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Set
from types import MappingProxyType, TracebackType
from typing import Any, Final

from spark_kafkalite.errors import RegistryError

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1
# The unknown fields of a node that has none: one for all of them.
NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})
# Of one partition's state, which every broker keeps in memory; and of another node.
MOST_STATE_FIELDS_BYTES: Final = 4 * 1024
MOST_FIELDS_BYTES: Final = 64 * 1024
# What int() takes beyond this (blanks, underscores, digits of other scripts) no program of Kafka's has written.
_NUMBER_TEXT = re.compile(r"-?[0-9]{1,20}")

_LOG: Final = logging.getLogger(__name__)
# The names of fields that were told of; no more than these, whatever names there are.
_told: set[str] = set()
_MOST_TOLD: Final = 20


class MalformedNode(RegistryError):
    """A node's data is not what its path promises. ``remedy`` is what an operator does about it."""

    remedy = "write what it should hold"


def encode_object(fields: Mapping[str, Any]) -> bytes:
    """Return compact JSON; the fields keep their order."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def decode_object(path: str, data: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises MalformedNode."""
    with reading(path, data):
        if not data:
            raise ValueError("it is empty")
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        return fields


class reading:  # noqa: N801  # named as a function; as a generator it takes twice as long
    """Turn whatever a malformed payload raises into MalformedNode: ``with reading(path, data): ...``."""

    __slots__ = ("_data", "_path")

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = data

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, (ValueError, KeyError, TypeError, AttributeError, RecursionError)):
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
            raise MalformedNode(
                f"registry node {self._path} holds {self._data[:80]!r}, which cannot be read: {why}"
            ) from error


def number(value: Any, first: int, last: int) -> int:
    """Return a whole number, which JSON may hold as text, too. ValueError unless it is from first to last."""
    if type(value) is not int:
        if not isinstance(value, str) or not _NUMBER_TEXT.fullmatch(value):
            raise ValueError(f"{str(value)[:40]!r} is not a whole number")
        value = int(value)
    whole: int = value
    if not first <= whole <= last:
        raise ValueError(f"{str(value)[:40]} is not from {first} to {last}")
    return whole


def text(value: Any, most: int | None = None) -> str:
    """Return a text that UTF-8 can carry, of at most so many characters. ValueError when it is none."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is not a text")
    if most is not None and len(value) > most:
        raise ValueError(f"{value[:40]!r}... has {len(value)} characters, more than {most}")
    value.encode()  # JSON can name half of a surrogate pair, which no answer could carry
    return value


def array(value: Any) -> list[Any]:
    """Return a JSON array. ValueError when it is none."""
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]!r} is not an array")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object. ValueError when it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:40]!r} is not an object")
    return value


def no_fields() -> Mapping[str, Any]:
    """Return the unknown fields of a node that has none."""
    return NO_FIELDS


def unknown_fields(path: str, fields: Mapping[str, Any], known: Set[str], most_bytes: int) -> Mapping[str, Any]:
    """Return the fields that a newer version has written into a node, to be written with it again.

    ``known`` are those that this version reads or writes. More than ``most_bytes`` of JSON are not kept, which is
    logged once for each name.
    """
    if fields.keys() <= known:
        return NO_FIELDS
    unknown = {name: value for name, value in fields.items() if name not in known}
    try:
        size = len(encode_object(unknown))
    except UnicodeEncodeError:
        return NO_FIELDS  # half of a surrogate pair, which no node can be written with
    if size <= most_bytes:
        return unknown
    names = ", ".join(sorted(unknown))[:200]
    if names not in _told and len(_told) < _MOST_TOLD:
        _told.add(names)
        _LOG.warning(
            "registry node %s has %d bytes in fields that this version does not know (%s), of which %d are kept at "
            "most: they are lost when a broker of this version writes the node; upgrade all brokers",
            path,
            size,
            names,
            most_bytes,
        )
    return NO_FIELDS

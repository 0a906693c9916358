"""Why a value does not fit ``--value-schema``: the field, its value, and the type that is expected. Pure.

Spark's parser decides whether a value fits, and does not report why. This looks through the values that it has refused,
and names the first difference by Spark's rules. Only records in quarantine pass through here.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_kafkalite.jobs.formats.json_times import FIRST_MS, ISO_DAY, LAST_MS

_SHOWN: Final = 100
_FRAME_BYTES: Final = 5
_BITS: Final[Mapping[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NUMBERS_AS_TEXT: Final = frozenset(("NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"))
_TIME_WORDS: Final = "TIMESTAMP (ms since the epoch, or a day or time of ISO 8601)"
_DATE: Final = re.compile(r"([0-9]{4,})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[T ].*)?)?)?\Z")
# What json.loads makes of a number that is no integer, without rounding it.
_Fraction = type("_Fraction", (str,), {})


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains values of one form. Sent to Spark's workers."""

    value: str
    schema: StructType | None

    def __call__(self, value: bytes | None) -> str | None:
        """Return why a value cannot be decoded, None if this does not find out."""
        if value is None:
            return None
        if self.value == "registry":
            if len(value) < _FRAME_BYTES or value[0] != 0:
                begins = value[:_FRAME_BYTES].hex(" ") or "nothing"
                return (
                    "the value is not framed as a schema registry's serializers do it: a byte 0 and the 4 bytes of a "
                    f"schema id are expected, and it begins with {begins}"
                )
            value = value[_FRAME_BYTES:]
        return None if self.schema is None else json_mismatch(value, self.schema)


def json_mismatch(payload: bytes, schema: StructType) -> str | None:
    """Return the first difference of a JSON text to a schema, None if there is none."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8 at byte {error.start}"
    try:
        document = json.loads(text, parse_float=_Fraction, parse_constant=_Fraction, strict=False)
    except json.JSONDecodeError as error:
        return f"the value is not one JSON object: {error.msg} at character {error.pos}: {_shown_text(text)}"
    except RecursionError:
        return "the value is not one JSON object of this schema: it is nested too deeply"
    except ValueError as error:
        # An integer of more than 4300 digits.
        return f"the value is no JSON that can be shown: {error}"
    if not isinstance(document, dict):
        return f"the value is {_shown(document)}, not a JSON object"
    return next(_mismatches("", document, schema), None)


def _mismatches(path: str, value: Any, kind: DataType) -> Iterator[str]:
    if value is None:
        return
    if isinstance(kind, StructType):
        if not isinstance(value, dict):
            yield _told(path, value, f"an object ({kind.simpleString()[:_SHOWN]})")
            return
        for field in kind:
            yield from _mismatches(f"{path}.{field.name}".lstrip("."), value.get(field.name), field.dataType)
    elif isinstance(kind, ArrayType):
        if not isinstance(value, list):
            yield _told(path, value, f"an array ({kind.simpleString()[:_SHOWN]})")
            return
        for number, item in enumerate(value):
            yield from _mismatches(f"{path}[{number}]", item, kind.elementType)
    elif isinstance(kind, MapType):
        if not isinstance(value, dict):
            yield _told(path, value, f"an object ({kind.simpleString()[:_SHOWN]})")
            return
        for key, item in value.items():
            yield from _mismatches(f"{path}.{key}", item, kind.valueType)
    elif not _fits(value, kind):
        yield _told(path, value, _TIME_WORDS if isinstance(kind, TimestampType) else kind.simpleString().upper())


def _fits(value: Any, kind: DataType) -> bool:
    check = _CHECKS.get(type(kind))
    if check is not None:
        return check(value)
    bits = _BITS.get(type(kind))
    if bits is not None:
        # A bool is an int in Python.
        return type(value) is int and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
    return True


def _is_number(value: Any) -> bool:
    return type(value) is int or isinstance(value, _Fraction)


def _is_float(value: Any) -> bool:
    return _is_number(value) or value in _NUMBERS_AS_TEXT


def _is_decimal(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, str) and re.fullmatch(r"[-+]?[0-9,.]+", value) is not None)


def _is_date(value: Any) -> bool:
    found = _DATE.match(value) if _is_text(value) else None
    if found is None:
        return False
    try:
        # Spark also takes a year or a month alone.
        date(int(found[1]), int(found[2] or 1), int(found[3] or 1))
    except ValueError:
        return False
    return True


def _is_time(value: Any) -> bool:
    if type(value) is int or (_is_text(value) and re.fullmatch(r"[-+]?[0-9]+", value.strip())):
        return FIRST_MS <= int(value) <= LAST_MS
    return _is_local_time(value)


def _is_local_time(value: Any) -> bool:
    return _is_text(value) and re.match(ISO_DAY, value) is not None and _is_date(value)


def _is_base64(value: Any) -> bool:
    if not _is_text(value):
        return False
    try:
        b64decode(value, validate=True)
    except (Base64Error, ValueError):
        return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, _Fraction)


_CHECKS: Final[Mapping[type[DataType], Callable[[Any], bool]]] = {
    StringType: lambda _: True,
    BooleanType: lambda value: isinstance(value, bool),
    FloatType: _is_float,
    DoubleType: _is_float,
    DecimalType: _is_decimal,
    DateType: _is_date,
    TimestampType: _is_time,
    TimestampNTZType: _is_local_time,
    BinaryType: _is_base64,
}


def _told(path: str, value: Any, wanted: str) -> str:
    return f"field {path} is {_shown(value)}, and {wanted} is expected"


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, _Fraction) else json.dumps(value, ensure_ascii=False)
    return _shown_text(text)


def _shown_text(text: str) -> str:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return shown if shown.isprintable() else repr(shown)

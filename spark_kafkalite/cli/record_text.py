"""How records look as text, and how text becomes records: one JSON form for both directions, and Kafka's console forms.

The JSON form of a record, one object a line::

    {"topic":"t","partition":0,"offset":5,"timestamp":1700000000000,"timestampType":"CreateTime",
     "key":"k","value":"v","headers":[{"key":"h","value":"x"}]}

Bytes that are not UTF-8 stand as base64 under ``keyBase64`` or ``valueBase64`` instead of ``key`` or ``value`` (in
headers likewise); null is null. Reading takes the same fields, all optional, and takes a value or key that is itself a
JSON object, list, number or truth value as its compact JSON text. ``offset`` and ``timestampType`` are ignored: the log
gives them.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final, NamedTuple

from spark_kafkalite.model import Headers, Record, TimestampType
from spark_kafkalite.printable import printable_json

_TYPE_NAMES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
    TimestampType.NONE: "NoTimestampType",
}
_RECORD_FIELDS: Final = frozenset(
    {
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "key",
        "keyBase64",
        "value",
        "valueBase64",
        "headers",
    }
)


class BadRecordText(ValueError):
    """A line is not a record; the message is the reason."""


class ParsedRecord(NamedTuple):
    """A record as it was written down. None means "not given" for topic, partition and timestamp."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    topic: str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


def record_to_json(record: Record) -> str:
    """Return a record as one line of JSON."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": _TYPE_NAMES[record.timestamp_type],
    }
    _put(fields, "key", record.key)
    _put(fields, "value", record.value)
    fields["headers"] = []
    for name, value in record.headers:
        header = {"key": name}
        _put(header, "value", value)
        fields["headers"].append(header)
    return printable_json(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))


def record_from_json(line: bytes) -> ParsedRecord:
    """Return the record of one line of JSON. Raises BadRecordText."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadRecordText(f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise BadRecordText(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRecordText("not a JSON object")
    unknown = sorted(fields.keys() - _RECORD_FIELDS)
    if unknown:
        raise BadRecordText(f"unknown field {unknown[0]!r}; the fields are {', '.join(sorted(_RECORD_FIELDS))}")
    headers = fields.get("headers") or []
    if not isinstance(headers, list):
        raise BadRecordText("headers is not a list")
    timestamp = _integer(fields, "timestamp")
    return ParsedRecord(
        value=_take(fields, "value"),
        key=_take(fields, "key"),
        headers=[_header(header) for header in headers],
        topic=_text(fields, "topic"),
        partition=_integer(fields, "partition"),
        timestamp_ms=None if timestamp is None or timestamp < 0 else timestamp,
    )


def timestamp_type_name(record: Record) -> str:
    """Return the name that Kafka's console consumer prints before a timestamp."""
    return _TYPE_NAMES[record.timestamp_type]


def _put(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    """Store bytes as text under ``name``, or as base64 under ``nameBase64``."""
    if data is None:
        fields[name] = None
        return
    try:
        fields[name] = data.decode("utf-8")
    except UnicodeDecodeError:
        fields[f"{name}Base64"] = base64.b64encode(data).decode("ascii")


def _take(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}Base64")
    if encoded is not None:
        if fields.get(name) is not None:
            raise BadRecordText(f"both {name} and {name}Base64 are given")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadRecordText(f"{name}Base64 is not base64") from None
    plain = fields.get(name)
    if plain is None:
        return None
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecordText(f"{name} holds a lone surrogate, which UTF-8 cannot hold") from None


def _header(header: Any) -> tuple[str, bytes | None]:
    if not isinstance(header, dict) or not isinstance(header.get("key"), str):
        raise BadRecordText(
            f'header {json.dumps(header, ensure_ascii=False)} is not of the form {{"key": "NAME", "value": "TEXT"}}'
        )
    return header["key"], _take(header, "value")


def _integer(fields: dict[str, Any], name: str) -> int | None:
    number = fields.get(name)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise BadRecordText(f"{name} is {number!r}, not a whole number")
    return number


def _text(fields: dict[str, Any], name: str) -> str | None:
    text = fields.get(name)
    if text is not None and not isinstance(text, str):
        raise BadRecordText(f"{name} is {text!r}, not a text")
    return text

"""The Avro schema of rows in Arrow's types, as Spark's own Avro writer would have it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_RECORD: Final = "record"
_PLAIN: Final[Mapping[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """Return the schema of a record. Raises ValueError naming a field that Avro, or this, does not have."""
    return _record(_RECORD, "", list(schema))


def _record(name: str, path: str, fields: list[pa.Field]) -> dict[str, Any]:
    found = []
    for each in fields:
        if not _NAME.fullmatch(each.name):
            raise ValueError(f"field {path}{each.name}: names in Avro are letters, digits and underscores")
        kind = _type(f"{name}_{each.name}", f"{path}{each.name}", each.type)
        found.append({"name": each.name, "type": ["null", kind] if each.nullable else kind})
    return {"type": "record", "name": name, "fields": found}


def _type(name: str, path: str, kind: pa.DataType) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _type(f"{name}_item", f"{path}[]", kind.value_type)]}
    if pa.types.is_struct(kind):
        return _record(name, f"{path}.", [kind.field(number) for number in range(kind.num_fields)])
    raise ValueError(f"field {path} is {kind}, which files of Avro do not hold here")

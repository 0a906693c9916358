"""Avro schemas as the columns of a DataFrame.

Owns the mapping of types, which is that of Spark's own ``from_avro``. What Spark has no type for is read as the type
below it: a time of day is an int or a long, a UUID a string. Refused are a union of several types, which Spark
would make a struct of members without names, and a record within itself, which it refuses as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
# In the units of the schema: the number of a writer that names no unit is taken as one of these.
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL: Final = "decimal"


@dataclass(frozen=True)
class AvroSchema:
    """A schema as fastavro takes it, with the records that it names."""

    parsed: Any
    named: Mapping[str, Any]

    @property
    def arrow_type(self) -> pa.StructType:
        """The type that decoded records are put into; times are in the units of the schema.

        Raises ValueError naming the field that no column can be, and for a schema of something else than a record.
        """
        found = _type(self.parsed, self.named, "", ())
        if not pa.types.is_struct(found):
            raise ValueError("the schema is not that of a record")
        return found


def avro_schema(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Return a schema of its JSON, and of the schemas that it refers to, each after those that it refers to itself.

    Raises ValueError for what is none.
    """
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    named: dict[str, Any] = {}
    parsed: Any = None
    for each in (*references, text):
        try:
            parsed = parse_schema(_with_known_types(json.loads(each)), named_schemas=named)
        except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a schema of Avro: {type(error).__name__}: {error}") from error
    return AvroSchema(parsed, named)


def spark_struct(schema: AvroSchema) -> StructType:
    """Return the type of the column. Raises ValueError as :attr:`AvroSchema.arrow_type`."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # Spark's times have microseconds, and Arrow's of the schema may have milliseconds; the type is the same.
    return from_arrow_schema(pa.schema(list(schema.arrow_type)), prefer_timestamp_ntz=True)


def _with_known_types(schema: Any) -> Any:
    """Return a schema without the logical types that columns do not have here."""
    if isinstance(schema, list):
        return [_with_known_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    logical = schema.get("logicalType")
    left_out = () if logical in _LOGICAL or logical == _DECIMAL else ("logicalType",)
    # A default is a value, and no schema.
    return {
        name: each if name == "default" else _with_known_types(each)
        for name, each in schema.items()
        if name not in left_out
    }


def _type(schema: Any, named: Mapping[str, Any], path: str, within: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ValueError(f"field {path} is a union of {len(others)} types, which no column can be")
        return _type(others[0], named, path, within)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema not in named:
            raise ValueError(f"field {path} is {schema!r}, which no column can be")
        return _type(named[schema], named, path, within)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _type(kind, named, path, within)
    if kind in ("record", "error"):
        if schema["name"] in within:
            raise ValueError(f"field {path} is a {schema['name']} within a {schema['name']}, which no column can be")
        inner = (*within, schema["name"])
        return pa.struct(
            [_field(each, named, f"{path}.{each['name']}".lstrip("."), inner) for each in schema["fields"]]
        )
    if kind == "array":
        return pa.list_(pa.field("element", _type(schema["items"], named, f"{path}[]", within)))
    if kind == "map":
        return pa.map_(pa.string(), _type(schema["values"], named, f"{path}{{}}", within))
    logical = schema.get("logicalType")
    if logical == _DECIMAL:
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    return _LOGICAL[logical] if logical in _LOGICAL else _type(kind, named, path, within)


def _field(field: Mapping[str, Any], named: Mapping[str, Any], path: str, within: tuple[str, ...]) -> pa.Field:
    return pa.field(field["name"], _type(field["type"], named, path, within))


def python_values(array: pa.Array) -> list[Any]:
    """Return the values of an array, with a dict for a map, for which Arrow has a list of pairs."""
    return [_python_value(each, array.type) for each in array.to_pylist()]


def _python_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: _python_value(value[each.name], each.type) for each in kind}
    if pa.types.is_map(kind):
        return {key: _python_value(each, kind.item_type) for key, each in value}
    if pa.types.is_list(kind):
        return [_python_value(each, kind.value_type) for each in value]
    return value

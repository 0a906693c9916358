"""The schema of a table: the columns of a load's files, and what a run may add to them. Pure.

A schema is the JSON of a Spark ``StructType`` as a dict, which is also what a Delta table's metadata has. Columns of
files may be null whatever ``--value-schema`` states, so every column of a table may be null.

A run may add columns, at any depth. Old files lack them, and readers return null. Everything else (another type, the
same name in another case) is refused: there is no way back from a table whose files contradict it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_kafkalite.jobs.tables.table_errors import TableError

Schema = dict[str, Any]

PARTITION_TYPES: Final[Mapping[str, str]] = {"day": "date", "hour": "integer"}
# Those of protocol 1/2. timestamp_ntz and variant are table features; Delta has no intervals.
_TYPES: Final = frozenset(
    ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp")
)
_DECIMAL: Final = re.compile(r"decimal\(\d+,\s*\d+\)")
# A table without column mapping cannot have them. Source: org.apache.spark.sql.delta.schema.SchemaUtils.
_NOT_IN_NAMES: Final = " ,;{}()\n\t="
# Of a field's metadata: invariants, generated and identity columns, column mapping, changed types.
_FEATURE_PREFIX: Final = "delta."


def table_schema(columns: Schema, partition_columns: Sequence[str]) -> Schema:
    """Return the schema of a table over files with these columns.

    Raises TableError, naming the column, for a type or a name that a table without table features cannot have.
    """
    fields = [*columns["fields"], *({"name": each, "type": PARTITION_TYPES[each]} for each in partition_columns)]
    return _struct(fields, "")


def _struct(fields: Sequence[Mapping[str, Any]], path: str) -> Schema:
    found: dict[str, Schema] = {}
    for each in fields:
        name = each["name"]
        column = f"{path}{name}"
        if not name or any(character in name for character in _NOT_IN_NAMES):
            raise TableError(
                f"column {column!r}: a Delta table cannot have a column whose name is empty or contains one of "
                f"{' '.join(map(repr, _NOT_IN_NAMES))}; rename it, or load without --table delta"
            )
        other = found.setdefault(name.lower(), _field(name, _type(each["type"], column)))
        if other["name"] != name or len([field for field in fields if field["name"] == name]) > 1:
            raise TableError(
                f"columns {path}{other['name']} and {column} have the same name, apart from case; rename one"
            )
    return {"type": "struct", "fields": list(found.values())}


def _field(name: str, kind: Any) -> Schema:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _type(kind: Any, column: str) -> Any:
    if isinstance(kind, str):
        if kind in _TYPES or _DECIMAL.fullmatch(kind):
            return kind
    elif kind["type"] == "struct":
        return _struct(kind["fields"], f"{column}.")
    elif kind["type"] == "array":
        return {"type": "array", "elementType": _type(kind["elementType"], f"{column}[]"), "containsNull": True}
    elif kind["type"] == "map":
        key, value = (_type(kind[f"{each}Type"], f"{column}.{each}") for each in ("key", "value"))
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    raise TableError(
        f"column {column} has type {type_name(kind)}, which a Delta table without table features cannot have; choose "
        "another type, or load without --table delta"
    )


def type_name(kind: Any) -> str:
    """Return a type as messages show it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return f"struct<{', '.join(each['name'] + ': ' + type_name(each['type']) for each in kind['fields'])}>"
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])}, {type_name(kind['valueType'])}>"
    return str(kind["type"])


def merged(table: Schema, wanted: Schema) -> Schema:
    """Return the table's schema with the columns that only ``wanted`` has; ``table`` itself if there are none.

    Raises TableError, naming the column and both types, for a change that is no addition.
    """
    found = _merged_struct(table, wanted, "")
    return table if found == table else found


def _merged_struct(table: Schema, wanted: Schema, path: str) -> Schema:
    ours = {each["name"]: each for each in wanted["fields"]}
    by_case = {name.lower(): name for name in ours}
    fields = []
    for field in table["fields"]:
        name, column = field["name"], f"{path}{field['name']}"
        same = by_case.pop(name.lower(), None)
        if same is None:
            if not field.get("nullable", True):
                raise TableError(f"column {column} of the table is NOT NULL, and the files do not have it")
            fields.append(field)
        elif same != name:
            raise TableError(f"column {column} of the table is {path}{same} in this run; Delta ignores case")
        else:
            kind = _merged(field["type"], ours[name]["type"], column)
            fields.append(field if kind == field["type"] else {**field, "type": kind})
    return {**table, "fields": [*fields, *(ours[name] for name in by_case.values())]}


def _merged(table: Any, wanted: Any, column: str) -> Any:
    if isinstance(table, str) or isinstance(wanted, str) or table["type"] != wanted["type"]:
        if table == wanted:
            return table
    elif table["type"] == "struct":
        return _merged_struct(table, wanted, f"{column}.")
    elif table["type"] == "array":
        return {**table, "elementType": _merged(table["elementType"], wanted["elementType"], f"{column}[]")}
    elif table["keyType"] == wanted["keyType"]:
        return {**table, "valueType": _merged(table["valueType"], wanted["valueType"], f"{column}.value")}
    raise TableError(
        f"column {column} is {type_name(table)} in the table and {type_name(wanted)} in this run; only new columns can "
        "be added: load with the table's type, or into another destination"
    )


def feature_of_columns(schema: Schema, path: str = "") -> str | None:
    """Return the first column that asks for something of its writers, with what it asks for, or None."""
    for field in schema["fields"]:
        column = f"{path}{field['name']}"
        for key in field.get("metadata") or {}:
            if key.startswith(_FEATURE_PREFIX):
                return f"{key} of column {column}"
        inner = [kind for kind in _kinds_in(field["type"]) if kind["type"] == "struct"]
        for kind in inner:
            found = feature_of_columns(kind, f"{column}.")
            if found is not None:
                return found
    return None


def _kinds_in(kind: Any) -> list[Schema]:
    """Return a nested type's own dict and those of its elements, keys and values."""
    if isinstance(kind, str):
        return []
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return [kind, *(found for each in inner for found in _kinds_in(each))]

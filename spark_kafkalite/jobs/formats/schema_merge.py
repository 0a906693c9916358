"""Merges the schemas of files that are read as one DataFrame, and compares an earlier schema with a later one. Pure.

The one change that keeps all files readable is a new field: it is null in files that were written before. Fields of
structs inside of structs, arrays and maps count, too. The order of fields does not count, and neither does nullability,
because Spark reads every column of a file as nullable. Two types of one field have no common column.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType


class SchemaConflict(ValueError):
    """Two schemas have no common one. ``field`` is the path of a field, ``before`` and ``after`` are its types."""

    def __init__(self, field: str, before: str, after: str) -> None:
        super().__init__(f"field {field} is {before} in one and {after} in the other")
        self.field = field
        self.before = before
        self.after = after


def merged(before: DataType, after: DataType, path: str = "") -> DataType:
    """Return the type with the fields of both, first those of ``before``, in its order.

    ``path`` is the name of the field whose types these are. Raises SchemaConflict.
    """
    if isinstance(before, StructType) and isinstance(after, StructType):
        return _merged_fields(before, after, path)
    if isinstance(before, ArrayType) and isinstance(after, ArrayType):
        return ArrayType(merged(before.elementType, after.elementType, f"{path}[]"))
    if isinstance(before, MapType) and isinstance(after, MapType):
        key = merged(before.keyType, after.keyType, f"{path}{{key}}")
        return MapType(key, merged(before.valueType, after.valueType, f"{path}{{}}"))
    if before.simpleString() != after.simpleString():
        raise SchemaConflict(path, before.simpleString(), after.simpleString())
    return before


def _merged_fields(before: StructType, after: StructType, path: str) -> StructType:
    fields = {field.name: field.dataType for field in before}
    spelled = {name.lower(): name for name in fields}
    for field in after:
        own = f"{path}.{field.name}".lstrip(".")
        known = spelled.setdefault(field.name.lower(), field.name)
        if known != field.name:
            # Spark's readers do not distinguish the two, unless spark.sql.caseSensitive is set.
            raise SchemaConflict(own, f"spelled {known}", f"spelled {field.name}")
        earlier = fields.get(field.name)
        fields[field.name] = field.dataType if earlier is None else merged(earlier, field.dataType, own)
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def missing_fields(of: DataType, within: DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields that ``of`` has and ``within`` lacks. The two must have a merged type."""
    if isinstance(of, StructType) and isinstance(within, StructType):
        there = {field.name: field.dataType for field in within}
        for field in of:
            own = f"{path}.{field.name}".lstrip(".")
            if field.name not in there:
                yield own
            else:
                yield from missing_fields(field.dataType, there[field.name], own)
    elif isinstance(of, ArrayType) and isinstance(within, ArrayType):
        yield from missing_fields(of.elementType, within.elementType, f"{path}[]")
    elif isinstance(of, MapType) and isinstance(within, MapType):
        yield from missing_fields(of.keyType, within.keyType, f"{path}{{key}}")
        yield from missing_fields(of.valueType, within.valueType, f"{path}{{}}")


def is_equal(one: DataType, other: DataType) -> bool:
    """Return whether two types have the same fields of the same types, in any order."""
    try:
        merged(one, other)
    except SchemaConflict:
        return False
    return not any(missing_fields(one, other)) and not any(missing_fields(other, one))

"""Times in JSON have one meaning: a number is milliseconds since the epoch, a text is a day or a time of ISO 8601.

Spark's own parser takes the number of a TIMESTAMP for seconds. So it parses such fields as texts, and expressions of
Spark's functions make the times of these. A text of digits alone is a number, too: Spark's text of a number does not
show quotes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, TimestampType

if TYPE_CHECKING:
    from pyspark.sql import Column

# The ms of the years 1 to 9999. Earlier and later days need more than the ten characters of yyyy-MM-dd.
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
ISO_DAY: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?$"


def time_of(text: Column, first_ms: int = FIRST_MS) -> Column:
    """Return the time in a text: ms since the epoch, from ``first_ms`` on, or ISO 8601; null for any other text."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    ms = text.try_cast("bigint")
    # Spark reads "12:30" as a time of today.
    iso = F.when(text.rlike(ISO_DAY), text.try_cast("timestamp"))
    return F.when(ms.between(first_ms, LAST_MS), F.timestamp_millis(ms)).otherwise(iso)


def has_times(kind: DataType) -> bool:
    """Return whether a type has a TIMESTAMP in it. The keys of maps are texts in JSON."""
    if isinstance(kind, StructType):
        return any(has_times(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return has_times(kind.elementType)
    if isinstance(kind, MapType):
        return has_times(kind.valueType)
    return isinstance(kind, TimestampType)


def with_texts(kind: DataType) -> DataType:
    """Return the type with a text in the place of each TIMESTAMP."""
    if not has_times(kind):
        return kind
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, with_texts(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(with_texts(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, with_texts(kind.valueType))
    return StringType()


def with_times(column: Column, kind: DataType) -> Column:
    """Return a column of type ``with_texts(kind)`` as one of ``kind``. A text that is no time becomes null."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    if not has_times(kind):
        return column
    if isinstance(kind, StructType):
        fields = [with_times(column.getField(field.name), field.dataType).alias(field.name) for field in kind]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(column, _each(with_times, kind.elementType))
    if isinstance(kind, MapType):
        value_type = kind.valueType
        return F.transform_values(column, lambda _, value: with_times(value, value_type))
    return time_of(column)


def has_bad_time(column: Column, kind: DataType) -> Column:
    """Return whether a column of type ``with_texts(kind)`` has a text in the place of a time that is none."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    found = F.lit(False)
    if not has_times(kind):
        return found
    if isinstance(kind, StructType):
        found = reduce(or_, (has_bad_time(column.getField(field.name), field.dataType) for field in kind))
    elif isinstance(kind, ArrayType):
        found = F.exists(column, _each(has_bad_time, kind.elementType))
    elif isinstance(kind, MapType):
        found = F.exists(F.map_values(column), _each(has_bad_time, kind.valueType))
    else:
        found = column.isNotNull() & time_of(column).isNull()
    return F.coalesce(found, F.lit(False))


def _each(function: Callable[[Column, DataType], Column], kind: DataType) -> Callable[[Column], Column]:
    return lambda item: function(item, kind)

"""Decodes records for a load's files: the value in the requested form, the event time, and the reason of a failure.

The module builds expressions of Spark's own functions. Python processes rows only for Avro values of a schema registry.
A record that cannot be decoded does not fail its task. The record gets a reason (:data:`REASON`), and the run writes it
into quarantine (``load/quarantine.py``) instead of the files. If an event time is missing or unreadable, :data:`TIME`
is null. Then the run uses the record's own timestamp and counts that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from spark_kafkalite.functions import split_registry_frame
from spark_kafkalite.jobs.formats.file_layout import FileLayout
from spark_kafkalite.spark.avro_columns import avro_schema, spark_struct
from spark_kafkalite.spark.reading.read_schema import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from spark_kafkalite.jobs.formats.mismatch import Explainer

REASON: Final = "kafkalite_reason"
TIME: Final = "kafkalite_time"
_DECODED: Final = "kafkalite_decoded"
_FRAMED: Final = "kafkalite_framed"
_CORRUPT: Final = "kafkalite_corrupt"
_AVRO: Final = "kafkalite_avro"
_NOT_UTF8: Final = "the value is not UTF-8"
_NOT_JSON: Final = "the value is no JSON object of --value-schema"
_NOT_FRAMED: Final = "the value is not framed as a schema registry's serializers do it"
# Those of which the value itself shows more.
EXPLAINED_REASONS: Final = frozenset((_NOT_UTF8, _NOT_JSON, _NOT_FRAMED))
_NO_LINE: Final = "the value is null, which no line of text can be"
_LINES: Final = "the value holds a line break"


def value_type(schema: str) -> StructType:
    """Return the type in ``--value-schema``: DDL, or the JSON of a Spark or Avro schema. Needs a Spark session.

    Raises ValueError with a one-line text for any other text.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    text = schema.strip()
    try:
        document = json.loads(text) if text.startswith("{") else None
        if document is not None and document.get("type") == "record":
            return spark_struct(avro_schema(text))
        found = StructType.fromDDL(text) if document is None else StructType.fromJson(document)
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{_shown(text)!r} is neither DDL such as 'id BIGINT, name STRING' nor the JSON of a Spark or Avro schema: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error
    if not isinstance(found, StructType) or not found.fields:
        raise ValueError(f"{_shown(text)!r} names no column")
    _check_map_keys(found, "")
    return found


def _check_map_keys(kind: DataType, path: str) -> None:
    """Raise ValueError for a map whose keys are no strings: the names of a JSON object are nothing else."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        for field in kind:
            _check_map_keys(field.dataType, f"{path}.{field.name}".lstrip("."))
    elif isinstance(kind, ArrayType):
        _check_map_keys(kind.elementType, f"{path}[]")
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise ValueError(
                f"field {path} is {_shown(kind.simpleString().upper())}, and the keys of a map in JSON can only be "
                f"STRING: give MAP<STRING,{_shown(kind.valueType.simpleString().upper())}>, and cast the keys where "
                "you read the files"
            )
        _check_map_keys(kind.valueType, f"{path}{{}}")


def check_value_schema(layout: FileLayout) -> None:
    """Raise ValueError for an invalid schema. Needs a Spark session."""
    if layout.value_schema is not None:
        value_type(layout.value_schema)


def value_column_type(value: str, value_schema: str | None) -> DataType:
    """Return the type of the column ``value`` in files with such values. Needs a Spark session.

    Raises ValueError as :func:`value_type` does.
    """
    from pyspark.sql.types import BinaryType, IntegerType, StructType

    kind: DataType = BinaryType() if value_schema is None else value_type(value_schema)
    return kind if value != "registry" else StructType().add("schema_id", IntegerType()).add("payload", kind)


def file_schema(kind: DataType) -> StructType:
    """Return the columns of files with values of this type."""
    from pyspark.sql.types import StructType

    found = StructType()
    for each in spark_schema(include_headers=True):
        found.add(each.name, kind if each.name == "value" else each.dataType)
    return found


def _shown(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."


def decoded(frame: DataFrame, layout: FileLayout) -> DataFrame:
    """Return the rows with values in the layout's form, and with :data:`REASON` and :data:`TIME` if it needs them."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    from spark_kafkalite.jobs.formats.json_times import has_bad_time, time_of, with_times

    value = F.col("value")
    payload = value
    if layout.value == "registry":
        frame = frame.withColumn(_FRAMED, split_registry_frame("value"))
        payload = F.col(_FRAMED)["payload"]
    if layout.schema_registry is not None:
        frame = frame.withColumn(_AVRO, _from_avro(value, layout))
    if layout.event_time.startswith("header:"):
        frame = frame.withColumn(TIME, time_of(_header(layout.event_time.removeprefix("header:")), 0))
    elif layout.event_time.startswith("json:"):
        path = f"$.{layout.event_time.removeprefix('json:')}"
        text = payload.cast("string") if layout.schema_registry is None else F.to_json(F.col(_AVRO)["record"])
        frame = frame.withColumn(TIME, time_of(F.get_json_object(text, path), 0))
    if not layout.is_decoded:
        return frame
    if layout.file_format == "text":
        return frame.withColumn(REASON, _no_line_reason(value))
    reason = F.lit(None).cast("string")
    made: Column
    if layout.schema_registry is not None:
        made, reason = F.col(_AVRO)["record"], F.col(_AVRO)["reason"]
    elif layout.value_schema is not None:
        schema = value_type(layout.value_schema)
        frame = frame.withColumn(_DECODED, _from_json(payload, schema))
        text, found = payload.cast("string"), F.col(_DECODED)
        # Spark's parser reads the first of several objects and ignores the rest. The length of a list counts them all.
        count = F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))), F.lit(0))
        is_bad = found.isNull() | found[_CORRUPT].isNotNull() | (count != 1) | has_bad_time(found, schema)
        reason = F.when(~F.is_valid_utf8(text), _NOT_UTF8).when(is_bad, _NOT_JSON)
        made = with_times(found.dropFields(_CORRUPT), schema)
    if layout.value == "registry":
        framed = F.col(_FRAMED)
        reason = F.when(framed.isNull(), _NOT_FRAMED).otherwise(reason)
        inner = payload if layout.value_schema is None else made
        made = F.when(framed.isNotNull() & reason.isNull(), F.struct(framed["schema_id"], inner.alias("payload")))
    return (
        # A null value is a tombstone of its key: there is nothing to decode.
        frame.withColumn(REASON, F.when(value.isNotNull(), reason))
        .withColumn(_DECODED, F.when(value.isNotNull(), made))
        .drop(_FRAMED, _AVRO)
    )


def explainer(layout: FileLayout) -> Explainer:
    """Return what explains the values that :func:`decoded` refuses. Needs a Spark session."""
    from spark_kafkalite.jobs.formats.mismatch import Explainer

    is_json = layout.value_schema is not None and layout.schema_registry is None
    return Explainer(layout.value, value_type(layout.value_schema) if is_json and layout.value_schema else None)


def decoded_value(frame: DataFrame) -> Column:
    """Return the column with the values for the files, in a frame that :func:`decoded` returned."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    return F.col(_DECODED if _DECODED in frame.columns else "value")


def _from_avro(value: Column, layout: FileLayout) -> Column:
    """Return a struct of the decoded record and, if decoding failed, the reason."""
    from spark_kafkalite.spark.pyspark_versions import arrow_column
    from spark_kafkalite.spark.schema_registry import AvroDecoder

    assert layout.schema_registry is not None and layout.value_schema is not None
    decoder = AvroDecoder(layout.schema_registry, layout.value_schema)
    return arrow_column(decoder, decoder.result_type, value)


def _from_json(payload: Column, schema: StructType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses
    from pyspark.sql.types import StringType, StructField, StructType

    from spark_kafkalite.jobs.formats.json_times import with_texts

    texts = with_texts(schema)
    assert isinstance(texts, StructType)
    with_corrupt = StructType([*texts.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(
        payload.cast("string"), with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    )


def _no_line_reason(value: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    text = value.cast("string")
    return (
        F.when(value.isNull(), _NO_LINE)
        .when(~F.is_valid_utf8(text), _NOT_UTF8)
        # Readers of lines, Spark's among them, also end one at a carriage return.
        .when(F.contains(text, F.lit("\n")) | F.contains(text, F.lit("\r")), _LINES)
    )


def _header(name: str) -> Column:
    """Return the text of the last header with this name."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    named = F.filter("headers", lambda header: header["key"] == F.lit(name))
    return F.try_element_at(named, F.lit(-1))["value"].cast("string")

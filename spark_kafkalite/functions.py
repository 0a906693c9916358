"""``spark_kafkalite.functions``: what an application needs in addition to ``format("kafkalite")``.

:func:`write_update` writes a streaming query in update mode, which Spark does not let a Python sink do directly: each
micro-batch is written by a batch write inside ``foreachBatch``. At-least-once, as the sink is: a batch that is repeated
after a failure is written again.

:func:`latest` reads a topic as it is now, for a join inside ``foreachBatch``.

:func:`split_registry_frame` takes the header off values that were written with a schema registry's serializers. It is
an expression of Spark's own functions: no Python runs on the rows.

:func:`from_registry` and :func:`to_registry` decode and encode Avro values with the schemas of a registry, in Spark's
Python workers; these need the extra ``registry``, on executors too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from spark_kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["from_registry", "latest", "split_registry_frame", "to_registry", "write_update"]

_MAGIC: Final = b"\0"
# Magic and schema id.
_HEADER_BYTES: Final = 5
_MODES: Final = ("FAILFAST", "PERMISSIVE")
_FORMATS: Final = ("avro", "json", "protobuf")
# How far the message indexes of a Protobuf value are looked for; a nested message has a few bytes.
_MOST_INDEX_BYTES: Final = 64
# How far a varint of 32 bits is never shifted.
_BROKEN: Final = 35


def write_update(data: DataFrame, options: Mapping[str, object] | None = None, **keywords: object) -> DataStreamWriter:
    """Return a writer of a streaming DataFrame in update mode; give it a checkpoint and a trigger, and start it.

    ``options`` are those of the sink (``kafka.bootstrap.servers``, ``topic``, ``kafka.*``); ``keywords`` are the same
    where a name can be a Python one (``topic="t"``). The rows that changed are written after every batch::

        counts = events.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
        query = (
            write_update(counts, {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "counts"})
            .option("checkpointLocation", "/checkpoints/counts")
            .start()
        )

    Raises ConfigError when ``data`` is not a stream, and what the sink raises for its options when the query runs.
    """
    if not data.isStreaming:
        raise ConfigError("write_update needs a streaming DataFrame; write this one with .write.mode('append')")
    given = {name: str(value) for name, value in {**(options or {}), **keywords}.items()}

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("kafkalite").options(**given).mode("append").save()

    return data.writeStream.outputMode("update").foreachBatch(write)


def latest(spark: SparkSession, options: Mapping[str, object] | None = None, **keywords: object) -> DataFrame:
    """Return a DataFrame of a topic as it is now: a new batch read, whose offsets its first action looks up.

    Spark looks offsets up once for each ``.load()``, so a topic that is loaded outside of ``foreachBatch`` and joined
    with a stream stays as it was in the first micro-batch. Call this inside::

        def enrich(batch, batch_id):
            products = latest(batch.sparkSession, brokers, subscribe="products").select(...)
            batch.join(products, "product", "left").write.mode("append").parquet(path)

        orders.writeStream.foreachBatch(enrich).start()

    ``options`` are those of a batch read, ``keywords`` the same where a name can be a Python one. Raises ConfigError if
    they set where the read ends, and what ``.load()`` raises.
    """
    given = {name: str(value) for name, value in {**(options or {}), **keywords}.items()}
    ends = sorted(name for name in given if name.lower().startswith("ending"))
    if ends:
        raise ConfigError(f"latest() reads up to the end of the log, and {ends[0]} sets another end: leave it out")
    return spark.read.format("kafkalite").options(**given).load()


def split_registry_frame(value: Column | str, format: Literal["avro", "json", "protobuf"] = "avro") -> Column:
    """Return a struct of what a schema registry's serializer has put before a value, and the rest of the value.

    Its fields are ``schema_id`` (int), with ``protobuf`` also ``message_indexes`` (array of int: which message of the
    schema it is, by its place among its siblings from the outermost on), and ``payload`` (binary). It is null for a
    value that is null or not framed so: shorter than the header, or with another first byte than 0::

        framed = events.select(split_registry_frame("value").alias("framed"))
        orders = framed.select("framed.schema_id", from_avro("framed.payload", schema).alias("order"))

    Raises ConfigError for another ``format``. Source: the wire format of Confluent's Schema Registry: magic 0, then the
    schema id as a big-endian int32. With Protobuf the message indexes follow: a count and that many indexes as zigzag
    varints. A single byte 0 stands for the first message, [0].
    """
    if format not in _FORMATS:
        raise ConfigError(f"format={format}: not one of {', '.join(_FORMATS)}; JSON Schema and Avro are framed alike")
    from pyspark.sql import functions as sql

    column = sql.col(value) if isinstance(value, str) else value
    is_framed = (sql.length(column) >= _HEADER_BYTES) & (sql.substring(column, 1, 1) == sql.lit(_MAGIC))
    unsigned = sql.conv(sql.hex(sql.substring(column, 2, 4)), 16, 10).cast("long")
    schema_id = sql.when(unsigned < 1 << 31, unsigned).otherwise(unsigned - (1 << 32)).cast("int").alias("schema_id")
    if format != "protobuf":
        return sql.when(is_framed, sql.struct(schema_id, _from(column, _HEADER_BYTES).alias("payload")))
    indexes = _message_indexes(sql.substring(column, _HEADER_BYTES + 1, _MOST_INDEX_BYTES))
    split = sql.struct(
        schema_id,
        indexes["indexes"].alias("message_indexes"),
        _from(column, _HEADER_BYTES + indexes["size"]).alias("payload"),
    )
    return sql.when(is_framed & indexes["is_whole"], split)


def from_registry(
    value: Column | str,
    url: str,
    *,
    subject: str | None = None,
    schema: str | None = None,
    mode: Literal["FAILFAST", "PERMISSIVE"] = "FAILFAST",
    named_by: Sequence[str] = (),
    client: Mapping[str, object] | None = None,
) -> Column:
    """Return a struct of the fields of Avro values that a schema registry's serializers have framed.

    The columns are those of the reader's schema: ``schema``, its JSON, or the newest schema of ``subject``, which is
    fetched once, here. Each value is decoded with the schema of its own id, which workers fetch from the registry at
    ``url`` (several with commas), and resolved into the reader's by Avro's rules::

        orders = events.select(from_registry("value", "http://registry:8081", subject="orders-value").alias("order"))
        orders.select("order.id", "order.amount")

    A value of null gives null. A value that cannot be decoded, because of its frame, its id or its bytes, ends the
    query with the reason; ``named_by`` names columns whose values the error shows, such as topic, partition and offset.
    With ``mode="PERMISSIVE"`` it gives null. A registry that does not answer ends the query in both modes.

    ``client`` has further settings of Confluent's client, such as ``basic.auth.user.info`` and ``ssl.ca.location``.
    Executors need the extra ``registry``, too. Raises ConfigError for arguments that are wrong, and SparkConditionError
    when the registry does not give the subject's schema.
    """
    from pyspark.sql import functions as sql

    from spark_kafkalite.spark.pyspark_versions import arrow_column
    from spark_kafkalite.spark.schema_registry import AvroDecoder, Registry

    if mode not in _MODES:
        raise ConfigError(f"mode={mode}: not one of {', '.join(_MODES)}")
    registry = Registry.at(url, client)
    if schema is not None and subject is None:
        decoder = AvroDecoder(registry, schema)
    elif subject is not None and schema is None:
        decoder = AvroDecoder(registry, *registry.latest(subject)[1:])
    else:
        raise ConfigError("from_registry takes either subject, whose newest schema names the columns, or schema")
    found = arrow_column(decoder, decoder.result_type, sql.col(value) if isinstance(value, str) else value)
    if mode == "PERMISSIVE":
        return found["record"]
    places = [
        sql.concat(sql.lit(f"{name}="), sql.coalesce(sql.col(name).cast("string"), sql.lit("null")), sql.lit(": "))
        for name in named_by
    ]
    error = sql.raise_error(sql.concat(*places, found["reason"]))
    return sql.when(found["reason"].isNotNull(), error.cast(decoder.record_type)).otherwise(found["record"])


def to_registry(
    record: Column | str,
    url: str,
    *,
    subject: str,
    schema: str | None = None,
    client: Mapping[str, object] | None = None,
) -> Column:
    """Return Avro values, framed as a schema registry's serializers do it, of a column of structs.

    They are encoded with the newest schema of ``subject``, or with ``schema``, which is registered there if it is not
    yet; both happen once, here. Fields are matched by name. A null gives null::

        rows = orders.select(to_registry(struct("id", "amount"), registry, subject="orders-value").alias("value"))

    A record that the schema does not take ends the query. ``url`` and ``client`` are those of :func:`from_registry`.
    Raises ConfigError for arguments that are wrong, and SparkConditionError when the registry fails or refuses.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.types import BinaryType

    from spark_kafkalite.spark.pyspark_versions import arrow_column
    from spark_kafkalite.spark.schema_registry import AvroEncoder, Registry

    registry = Registry.at(url, client)
    if schema is None:
        encoder = AvroEncoder(*registry.latest(subject))
    else:
        encoder = AvroEncoder(registry.register(subject, schema), schema)
    return arrow_column(encoder, BinaryType(), sql.col(record) if isinstance(record, str) else record)


def _from(column: Column, skipped: Column | int) -> Column:
    """Return a binary column without so many bytes at its beginning."""
    from pyspark.sql import functions as sql

    position = sql.lit(skipped) if isinstance(skipped, int) else skipped
    return sql.substring(column, position + 1, sql.length(column))


def _message_indexes(data: Column) -> Column:
    """Return a struct: the indexes at the beginning of ``data``, their ``size`` in bytes, whether they are whole."""
    from pyspark.sql import functions as sql

    digits = sql.hex(data)
    size = (sql.length(digits) / 2).cast("int")
    numbers = sql.transform(
        sql.when(size > 0, sql.sequence(sql.lit(0), size - 1)).otherwise(sql.array().cast("array<int>")),
        lambda index: sql.conv(sql.substring(digits, 2 * index + 1, sql.lit(2)), 16, 10).cast("long"),
    )
    start = sql.struct(
        sql.lit(0).cast("long").alias("value"),
        sql.lit(0).alias("shift"),
        # Of the indexes; -1: the count itself is being read.
        sql.lit(-1).cast("long").alias("count"),
        sql.array().cast("array<int>").alias("indexes"),
        sql.lit(0).alias("size"),
        sql.lit(False).alias("is_whole"),
    )

    def take(state: Column, byte: Column) -> Column:
        # Spark shifts by constants alone.
        value = state["value"] + byte.bitwiseAND(sql.lit(127)) * sql.pow(sql.lit(2), state["shift"]).cast("long")
        number = sql.when(value % 2 == 0, value / 2).otherwise(-(value + 1) / 2).cast("long")
        goes_on = byte >= 128
        # A cast of it would end the query.
        is_too_large = ~goes_on & ~number.between(-(1 << 31), (1 << 31) - 1)
        begins = state["count"] < 0
        count = sql.when(goes_on | ~begins, state["count"]).otherwise(number)
        indexes = (
            sql.when(goes_on, state["indexes"])
            .when(begins & (number == 0), sql.array(sql.lit(0)))
            .when(begins, state["indexes"])
            .otherwise(sql.concat(state["indexes"], sql.array(number.try_cast("int"))))
        )
        taken = sql.struct(
            sql.when(goes_on, value).otherwise(sql.lit(0)).cast("long").alias("value"),
            sql.when(is_too_large, _BROKEN).when(goes_on, state["shift"] + 7).otherwise(sql.lit(0)).alias("shift"),
            count.cast("long").alias("count"),
            indexes.alias("indexes"),
            (state["size"] + 1).alias("size"),
            (~goes_on & ~is_too_large & (sql.size(indexes) >= count) & (count >= 0)).alias("is_whole"),
        )
        return sql.when(state["is_whole"] | (state["shift"] >= _BROKEN), state).otherwise(taken)

    return sql.aggregate(numbers, start, take)

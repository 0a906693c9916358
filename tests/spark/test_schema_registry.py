"""Avro values with a schema registry's frame as columns and back; Confluent's serializers say what is right."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

pytest.importorskip("confluent_kafka.schema_registry")

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.functions import from_registry, to_registry
from spark_kafkalite.jobs import hadoop_load
from spark_kafkalite.spark import read_published
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.schema_registry import NOT_FRAMED, AvroDecoder, Registry
from tests.patience import PATIENCE_S

from .job_runs import NEW_YEAR_MS, failure, load, manifests
from .stub_registry import StubRegistry
from .topics import Topics

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}
NOT_THERE = "schema id 99 is not in the registry"
EVERY = {
    "type": "record",
    "name": "Every",
    "namespace": "shop",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "half", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "precise", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "list", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "map", "type": {"type": "map", "values": "string"}},
        {"name": "other", "type": ["null", "Kind"]},
        {"name": "inner", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "double"}]}},
    ],
}
EVERY_VALUE: dict[str, Any] = {
    "flag": True,
    "small": -1,
    "large": 1 << 40,
    "half": 0.5,
    "double": 0.1,
    "text": "grüße",
    "raw": b"\0\xff",
    "kind": "B",
    "code": b"xy",
    "day": date(2013, 1, 2),
    "at": datetime(2013, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    "precise": None,
    "local": datetime(2013, 1, 2, 3, 4, 5, 678901),
    "price": Decimal("-12.30"),
    "list": [1, None],
    "map": {"a": "b"},
    "other": "A",
    "inner": {"x": 1.5},
}


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as running:
        yield running


def serialized(registry: StubRegistry, schema: Any, value: Any, subject: str = "orders-value") -> bytes:
    """Return a value as Confluent's serializer writes it, with an id of the registry."""
    context = SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)
    with SchemaRegistryClient({"url": registry.url}) as client:
        found = AvroSerializer(client, json.dumps(schema))(value, context)
    assert found is not None
    return found


def frame(spark: SparkSession, values: list[bytes | None]) -> Any:
    return spark.createDataFrame(list(enumerate(values)), "offset int, value binary").coalesce(1)


@pytest.mark.versions
def test_values_of_all_types_are_read_and_written_as_confluent_does(
    spark: SparkSession, registry: StubRegistry
) -> None:
    value = serialized(registry, EVERY, EVERY_VALUE)
    every = frame(spark, [value, None]).select(
        "offset", from_registry("value", registry.url, subject="orders-value").alias("order")
    )
    written = every.select("offset", "order", to_registry("order", registry.url, subject="orders-value").alias("value"))
    first, second = written.orderBy("offset").collect()
    found = first.order.asDict(recursive=True)
    expected = {**EVERY_VALUE, "at": EVERY_VALUE["at"].astimezone().replace(tzinfo=None)}
    assert {name: bytes(each) if isinstance(each, bytearray) else each for name, each in found.items()} == expected
    assert bytes(first.value) == value
    assert (second.order, second.value) == (None, None)


@pytest.mark.versions
def test_a_stream_decodes_each_record_with_its_own_schema(
    spark: SparkSession, topics: Topics, registry: StubRegistry, checkpoint: str
) -> None:
    topic = topics.new()
    newest = registry.register("orders-value", SECOND)
    values = [serialized(registry, FIRST, {"id": 7}), serialized(registry, SECOND, {"id": 8, "note": "n"})]
    assert values[0][:5] != values[1][:5] == struct.pack(">bi", 0, newest)
    for each in [*values, None]:
        topics.producer.send(topic, each)
    topics.producer.flush(PATIENCE_S)
    stream = topics.stream(topic)
    orders = stream.select("offset", from_registry("value", registry.url, schema=json.dumps(SECOND)).alias("order"))
    query = orders.writeStream.format("memory").queryName("orders").option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    query.stop()
    rows = spark.sql("select offset, order from orders order by offset").collect()
    assert [row.order and tuple(row.order) for row in rows] == [(7, None), (8, "n"), None]


@pytest.mark.versions
def test_what_cannot_be_decoded_fails_the_query_or_is_null(spark: SparkSession, registry: StubRegistry) -> None:
    good = serialized(registry, FIRST, {"id": 7})
    other = registry.register("other", "syntax", schema_type="PROTOBUF")
    clash = registry.register("clash", {"type": "record", "name": "Order", "fields": [{"name": "z", "type": "string"}]})
    bad = {
        b"": NOT_FRAMED,
        b"\1" + good[1:]: NOT_FRAMED,
        struct.pack(">bi", 0, 99) + b"\2": NOT_THERE,
        struct.pack(">bi", 0, other) + b"\2": "the schema is one of PROTOBUF, not of Avro",
        struct.pack(">bi", 0, clash)
        + b"\2x": f"the value cannot be read with schema id {clash}: SchemaResolutionError",
        good[:5]: "the value cannot be read with schema id 1: EOFError",
    }
    data = frame(spark, [good, *bad, None, good, struct.pack(">bi", 0, 99)])
    permissive = from_registry("value", registry.url, schema=json.dumps(FIRST), mode="PERMISSIVE")
    rows = data.select("offset", permissive.alias("order")).orderBy("offset").collect()
    assert [row.order and row.order.id for row in rows] == [7, *[None] * (len(bad) + 1), 7, None]
    strict = from_registry("value", registry.url, schema=json.dumps(FIRST), named_by=("offset",))
    for number, reason in enumerate(bad.values(), 1):
        with pytest.raises(PySparkException) as raised:
            data.where(f"offset = {number}").select(strict.alias("order")).collect()
        assert f"offset={number}: {reason}" in str(raised.value)


def test_a_schema_is_fetched_once_and_one_that_is_not_there_is_asked_for_once(registry: StubRegistry) -> None:
    good, unknown = serialized(registry, FIRST, {"id": 7}), struct.pack(">bi", 0, 99)
    decode = AvroDecoder(Registry.at(registry.url), json.dumps(FIRST))
    for _ in range(3):
        found = decode(pa.array([good, unknown, good, unknown])).to_pylist()
    assert found == [{"record": {"id": 7}, "reason": None}, {"record": None, "reason": NOT_THERE}] * 2
    assert [registry.requests.count(f"GET /schemas/ids/{number}") for number in (1, 99)] == [1, 1]


@pytest.mark.versions
def test_a_registry_that_fails_makes_no_nulls(spark: SparkSession, registry: StubRegistry) -> None:
    value = serialized(registry, FIRST, {"id": 7})
    permissive = from_registry(
        "value", registry.url, schema=json.dumps(FIRST), mode="PERMISSIVE", client={"max.retries": 0}
    )
    registry.fails_with = 503
    with pytest.raises(PySparkException, match=r"KAFKALITE_SCHEMA_REGISTRY_FAILED.*schema id 1: as the test says"):
        frame(spark, [value]).select(permissive.alias("order")).collect()


def test_a_record_that_the_schema_does_not_take_fails_the_query(spark: SparkSession, registry: StubRegistry) -> None:
    data = spark.createDataFrame([(1, 2.5)], "id int, note double")
    column = to_registry(F.struct("id", "note"), registry.url, subject="orders-value", schema=json.dumps(SECOND))
    with pytest.raises(PySparkException, match=r"a record does not fit the schema: .*2.5"):
        data.select(column).collect()


def test_a_schema_is_registered_once_and_read_by_confluent_s_deserializer(
    spark: SparkSession, registry: StubRegistry
) -> None:
    data = spark.createDataFrame([(1, "a"), (2, None)], "id int, note string")
    column = to_registry(F.struct("id", "note"), registry.url, subject="orders-value", schema=json.dumps(SECOND))
    rows = data.select("id", column.alias("value")).orderBy("id").collect()
    context = SerializationContext("orders", MessageField.VALUE)
    with SchemaRegistryClient({"url": registry.url}) as client:
        found = [AvroDeserializer(client)(bytes(row.value), context) for row in rows]
    assert found == [{"id": 1, "note": "a"}, {"id": 2, "note": None}]
    assert [each for each in registry.requests if each.startswith("POST")] == ["POST /subjects/orders-value/versions"]


def test_schemas_that_refer_to_others(spark: SparkSession, registry: StubRegistry) -> None:
    item = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "n", "type": "int"}]}
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "item", "type": "Item"}]}
    registry.register("item", item)
    number = registry.register("orders-value", order, ("shop.Item", "item", 1))
    column = from_registry("value", registry.url, subject="orders-value", client={"basic.auth.user.info": "me:pw"})
    (row,) = frame(spark, [struct.pack(">bi", 0, number) + b"\x0e"]).select(column.alias("order")).collect()
    assert row.order.item.n == 7
    assert registry.authorizations[-1] == "Basic bWU6cHc="


def test_wrong_arguments_are_refused_before_anything_runs(registry: StubRegistry) -> None:
    union = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}
    tree = {"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}
    registry.register("messages", "syntax", schema_type="PROTOBUF")
    for given, text in [
        ({"subject": "messages"}, "subject messages: the schema is one of PROTOBUF, not of Avro"),
        ({}, "takes either subject"),
        ({"subject": "s", "schema": "{}"}, "takes either subject"),
        ({"schema": "{"}, "the reader's schema: not a schema of Avro"),
        ({"schema": '"int"'}, "the reader's schema: the schema is not that of a record"),
        ({"schema": json.dumps(union)}, "field a is a union of 2 types"),
        ({"schema": json.dumps(tree)}, "field t is a T within a T"),
        ({"schema": json.dumps(FIRST), "mode": "DROP"}, "mode=DROP: not one of FAILFAST, PERMISSIVE"),
        ({"schema": json.dumps(FIRST), "client": {"no.such": 1}}, "no.such"),
    ]:
        with pytest.raises(ConfigError, match=text):
            from_registry("value", registry.url, **given)  # type: ignore[arg-type]
    with pytest.raises(
        SparkConditionError, match=r"KAFKALITE_SCHEMA_REGISTRY_FAILED.*subject absent: Subject 'absent'"
    ):
        from_registry("value", registry.url, subject="absent")


@pytest.mark.versions
def test_a_load_decodes_avro_by_each_record_s_schema(
    spark: SparkSession, topics: Topics, registry: StubRegistry, tmp_path: Path
) -> None:
    at = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0}
    topic, second = topics.new(), {**SECOND, "fields": [*SECOND["fields"], at]}
    day = datetime(2014, 5, 9, 10, tzinfo=UTC)
    for value in (
        serialized(registry, FIRST, {"id": 7}),
        serialized(registry, second, {"id": 8, "note": "n", "at": day}),
        None,
        b"bad",
    ):
        topics.producer.send(topic, value, timestamp_ms=NEW_YEAR_MS)
    topics.producer.flush(PATIENCE_S)
    schema, access = tmp_path / "order.avsc", tmp_path / "registry.properties"
    schema.write_text(json.dumps(second, indent=2))
    access.write_text("basic.auth.user.info=me:pw\n")
    given = ("--value", "registry", "--schema-registry", registry.url, "--value-schema", str(schema))
    given += ("--schema-registry-config", str(access), "--event-time", "json:at")
    refused = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path / "to"), *given)
    assert f"the first is offset 3 of {topic}-0: {NOT_FRAMED}: a byte 0 and the 4 bytes of a schema id are" in refused
    summary = load(topics, topic, tmp_path / "to", *given, "--max-quarantined", "1")
    assert (summary["records"], summary["quarantined_records"], summary["event_time_fallbacks"]) == (3, 1, 1)
    rows = read_published(spark, str(tmp_path / "to")).orderBy("offset").collect()
    assert [row.value and (row.value.schema_id, row.value.payload.id, row.value.payload.note) for row in rows] == [
        (1, 7, None),
        (2, 8, "n"),
        None,
    ]
    (manifest,) = manifests(tmp_path / "to")
    days = {file["final"].split("/")[1]: file["records"] for file in manifest["files"]}
    assert days == {"day=1970-01-01": 1, "day=2014-05-09": 1, "day=2013-01-01": 1}
    assert registry.authorizations[-1] == "Basic bWU6cHc="
    topics.producer.send(topic, struct.pack(">bi", 0, 99), timestamp_ms=NEW_YEAR_MS)
    topics.producer.flush(PATIENCE_S)
    registry.fails_with = 401
    where = ("--topic", topic, "--destination", str(tmp_path / "to"), "--max-quarantined", "100%")
    refused = failure(hadoop_load, topics, *where, *given, code=3)
    assert f"[KAFKALITE_SCHEMA_REGISTRY_FAILED] {registry.url}, schema id 99: as the test says" in refused
    assert len(manifests(tmp_path / "to")) == 1


def test_a_load_s_registry_needs_a_schema(topics: Topics, registry: StubRegistry, tmp_path: Path) -> None:
    given = ("--topic", "absent", "--destination", str(tmp_path), "--schema-registry", registry.url)
    assert "--schema-registry needs --value registry, and --value-schema" in failure(
        hadoop_load, topics, *given, "--value", "registry", code=2
    )

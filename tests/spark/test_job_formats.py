"""What a load makes of records: formats and codecs, decoded values, event times, and what cannot be decoded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import Row, SparkSession

from spark_kafkalite.spark import read_published
from spark_kafkalite.spark.jobs.formats import CODECS

from .job_runs import load, manifests
from .topics import Topics

NEW_YEAR_MS = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000
ALL_BYTES = bytes(range(256))

pytestmark = pytest.mark.any_spark


def published(destination: Path) -> list[str]:
    return [file["final"] for manifest in manifests(destination) for file in manifest["files"]]


def fill(topics: Topics, topic: str, count: int = 30) -> list[bytes]:
    """Send records of two days, with every byte there is and without a key or a value; return the values."""
    values = [ALL_BYTES[each:] + ALL_BYTES[:each] for each in range(count)]
    for number, value in enumerate(values):
        topics.producer.send(
            topic,
            None if number == 3 else value,
            key=None if number % 2 else ALL_BYTES,
            partition=number % 2,
            timestamp_ms=NEW_YEAR_MS + (number % 3) * DAY_MS // 2,
            headers=[("h", ALL_BYTES), ("empty", None)] if number % 5 else [],
        )
    topics.producer.flush(30)
    return values


@pytest.fixture(scope="module")
def filled(broker: Any, spark: SparkSession) -> Iterator[tuple[Topics, str]]:
    """A topic for tests that only read it."""
    with Topics(broker.bootstrap, spark, "formats") as topics:
        topic = topics.new(2)
        fill(topics, topic)
        yield topics, topic


def plain(row: Row) -> tuple[Any, ...]:
    headers = [(each["key"], each["value"] and bytes(each["value"])) for each in row.headers or []]
    # None sorts with nothing.
    key, value = (each is not None and bytes(each) for each in (row.key, row.value))
    return row.partition, row.offset, key, value, row.timestamp, headers


SPARKS = [
    (file_format, codec)
    for file_format, codecs in CODECS.items()
    if file_format in ("parquet", "orc", "json")
    for codec in codecs
]


@pytest.mark.parametrize(("file_format", "codec"), SPARKS)
def test_what_spark_writes_is_read_as_it_was_sent(
    filled: tuple[Topics, str], spark: SparkSession, tmp_path: Path, file_format: str, codec: str
) -> None:
    topics, topic = filled
    summary = load(topics, topic, tmp_path, "--format", file_format, "--codec", codec)
    assert (summary["records"], summary["files"]) == (30, 2)
    found = read_published(spark, str(tmp_path), check_counts=True)
    sent = topics.read(topic, includeHeaders="true")
    assert sorted(map(plain, found.collect())) == sorted(map(plain, sent.collect()))
    assert all(f".{file_format}" in path for path in published(tmp_path))
    (manifest,) = manifests(tmp_path)
    assert (manifest["layout"]["format"], manifest["layout"]["codec"]) == (file_format, codec)


@pytest.mark.parametrize("codec", CODECS["avro"])
def test_avro_files_are_containers_that_others_read(
    filled: tuple[Topics, str], spark: SparkSession, tmp_path: Path, codec: str
) -> None:
    topics, topic = filled
    assert load(topics, topic, tmp_path, "--format", "avro", "--codec", codec)["records"] == 30
    rows: list[Any] = []
    for path in published(tmp_path):
        assert path.endswith(".avro")
        with (tmp_path / path).open("rb") as file:
            here = list(fastavro.reader(file))
        assert len(here) == java_records(spark, tmp_path / path)
        rows += here
    found = sorted(
        (
            each["partition"],
            each["offset"],
            each["key"] is not None and each["key"],
            each["value"] is not None and each["value"],
            each["timestamp"].replace(tzinfo=None),
            [(header["key"], header["value"]) for header in each["headers"] or []],
        )
        for each in rows
    )
    assert found == sorted(map(plain, topics.read(topic, includeHeaders="true").collect()))


def java_records(spark: SparkSession, path: Path) -> int:
    """Count a container's records with Avro's own library in Java."""
    avro, java = spark._jvm.org.apache.avro, spark._jvm.java
    reader = avro.file.DataFileReader(java.io.File(str(path)), avro.generic.GenericDatumReader())
    count = 0
    while reader.hasNext():
        reader.next()
        count += 1
    reader.close()
    return count


@pytest.mark.parametrize("codec", CODECS["text"])
def test_text_files_have_the_values_as_lines(topics: Topics, spark: SparkSession, tmp_path: Path, codec: str) -> None:
    topic = topics.new(2)
    texts = ["a", "", "grüße", "x" * 3000, "tab\there", '{"json": 1}']
    for number, text in enumerate(texts * 5):
        topics.producer.send(topic, text.encode(), partition=number % 2, timestamp_ms=NEW_YEAR_MS + number % 2 * DAY_MS)
    topics.producer.flush(30)
    assert load(topics, topic, tmp_path, "--format", "text", "--codec", codec)["records"] == 30
    found = [row.value for path in published(tmp_path) for row in spark.read.text(str(tmp_path / path)).collect()]
    assert sorted(found) == sorted(texts * 5)
    (manifest,) = manifests(tmp_path)
    offsets = sorted(
        (part["partition"], part["first"], part["last"], part["rows"])
        for file in manifest["files"]
        for part in file["offsets"]
    )
    assert offsets == [(0, 0, 14, 15), (1, 0, 14, 15)]
    assert sorted(row.value for row in read_published(spark, str(tmp_path), check_counts=True).collect()) == sorted(
        text.encode() for text in texts * 5
    )

"""What a load makes of records: formats and codecs, decoded values, event times, and what cannot be decoded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import Row, SparkSession

from spark_kafkalite.jobs import hadoop_load
from spark_kafkalite.jobs.formats import lines
from spark_kafkalite.jobs.formats.file_layout import CODECS, FileFormat
from spark_kafkalite.manifests.manifest import ManifestError
from spark_kafkalite.spark import read_published
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from .job_runs import DAY_MS, NEW_YEAR_MS, failure, load, manifests
from .topics import Topics

ALL_BYTES = bytes(range(256))


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
    topics.producer.flush(PATIENCE_S)
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


def codecs_of(*formats: FileFormat) -> list[tuple[FileFormat, str]]:
    """Return the formats with the first codec of each that compresses; with all of them in the soak."""
    return [(each, codec) for each in formats for codec in (CODECS[each] if SOAK else CODECS[each][1:2])]


def in_soak(*more: Any) -> list[Any]:
    """Return cases that differ from others of the test in little."""
    return list(more) if SOAK else []


@pytest.mark.any_spark
@pytest.mark.parametrize(("file_format", "codec"), codecs_of("orc", *in_soak("parquet")))
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


@pytest.mark.parametrize(("_", "codec"), codecs_of("text"))
def test_text_files_have_the_values_as_lines(
    topics: Topics, spark: SparkSession, tmp_path: Path, _: str, codec: str
) -> None:
    topic = topics.new(2)
    texts = ["a", "", "grüße", "x" * 3000, "tab\there", '{"json": 1}']
    for number, text in enumerate(texts * 5):
        topics.producer.send(topic, text.encode(), partition=number % 2, timestamp_ms=NEW_YEAR_MS + number % 2 * DAY_MS)
    topics.producer.flush(PATIENCE_S)
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


def send(topics: Topics, topic: str, *values: bytes | None, **fields: Any) -> None:
    for value in values:
        topics.producer.send(topic, value, partition=0, **{"timestamp_ms": NEW_YEAR_MS, **fields})
    topics.producer.flush(PATIENCE_S)


@pytest.mark.any_spark
def test_a_record_that_does_not_get_into_its_file_is_seen(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.new()
    topics.fill(topic, "abc", timestamp_ms=NEW_YEAR_MS)
    made_files = lines.made_files

    def lose_a_line(spark: SparkSession, files: Any, data: str) -> Any:
        (file,) = (tmp_path / data).glob(f"kafkalite_group={topic}@*/part-*")
        *kept, _, end = file.read_bytes().split(b"\n")
        assert (len(kept), end) == (2, b"")
        file.write_bytes(b"".join(line + b"\n" for line in kept))
        file.with_name(f".{file.name}.crc").unlink()
        return made_files(spark, files, data)

    monkeypatch.setattr(lines, "made_files", lose_a_line)
    refused = failure(hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), "--format", "text")
    assert "holds 2 records; 3 were put into it; nothing was published" in refused
    assert manifests(tmp_path) == []


@pytest.mark.versions
@pytest.mark.parametrize("file_format", ["parquet", *in_soak("orc")])
def test_values_of_json_become_columns(topics: Topics, spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    topic = topics.new()
    send(topics, topic, b'{"id": 1, "at": {"x": [1.5, 2]}, "more": 1}', b'{"id": null}', None, '{"name": "ü"}'.encode())
    schema = tmp_path / "schema.ddl"
    schema.write_text("id BIGINT,\n  name STRING, at STRUCT<x: ARRAY<DOUBLE>>\n")
    given = ("--value", "json", "--value-schema", str(schema), "--format", file_format)
    assert load(topics, topic, tmp_path / "to", *given)["records"] == 4
    assert len(published(tmp_path / "to")) == 1
    rows = read_published(spark, str(tmp_path / "to"), check_counts=True).orderBy("offset").collect()
    found = [row.value and row.value.asDict(recursive=True) for row in rows]
    assert found == [
        {"id": 1, "name": None, "at": {"x": [1.5, 2.0]}},
        {"id": None, "name": None, "at": None},
        None,
        {"id": None, "name": "ü", "at": None},
    ]
    (manifest,) = manifests(tmp_path / "to")
    assert manifest["layout"]["value_schema"] == "id BIGINT, name STRING, at STRUCT<x: ARRAY<DOUBLE>>"


@pytest.mark.any_spark
@pytest.mark.parametrize("schema", ["id BIGINT", *in_soak(None)])
def test_a_registry_s_frame_is_split(topics: Topics, spark: SparkSession, tmp_path: Path, schema: str | None) -> None:
    topic = topics.new()
    send(topics, topic, b"\0\0\0\1\2" + b'{"id": 7}', None)
    given = ("--value", "registry", *(() if schema is None else ("--value-schema", schema)))
    load(topics, topic, tmp_path, *given)
    first, second = read_published(spark, str(tmp_path)).orderBy("offset").collect()
    payload = bytearray(b'{"id": 7}') if schema is None else Row(id=7)
    assert (first.value.schema_id, first.value.payload, second.value) == (258, payload, None)


BAD = {
    b'{"id": "x"}': 'field id is "x", and BIGINT is expected',
    b'{"id": 1} {"id": 2}': "the value is not one JSON object: Extra data at character 10: ",
    b'[{"id": 1}]': 'the value is [{"id": 1}], not a JSON object',
    b"null": "the value is null, not a JSON object",
    b"": "the value is not one JSON object: Expecting value at character 0: ",
    b'{"id": 1': "the value is not one JSON object: Expecting ',' delimiter at character 8: ",
    b'{"name": "\xff"}': "the value is not UTF-8 at byte 10",
}


@pytest.mark.any_spark
def test_what_cannot_be_decoded_fails_the_run_or_goes_into_quarantine(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic, other = topics.new(2), topics.new(1)
    send(topics, topic, b'{"id": 1}', *BAD, b'{"id": 2}', key=ALL_BYTES, headers=[("h", ALL_BYTES)])
    topics.producer.send(topic, b"bad", partition=1, timestamp_ms=NEW_YEAR_MS)
    send(topics, other, b"worse")
    given = ("--destination", str(tmp_path), "--value", "json", "--value-schema", "id BIGINT, name STRING")
    both = f"{topic},{other}"
    refused = failure(hadoop_load, topics, "--topic", both, *given, "--max-quarantined", "8")
    first = sorted([topic, other])[0]
    assert "9 of 11 records cannot be decoded, and --max-quarantined is 8; the first is offset" in refused
    told = (
        'field id is "x", and BIGINT is expected' if first == topic else "the value is not one JSON object: Expecting"
    )
    assert f" of {first}-0: {told}" in refused
    assert manifests(tmp_path) == []
    summary = load(topics, both, tmp_path, *given[2:], "--max-quarantined", "82%")
    assert (summary["records"], summary["quarantined_records"]) == (2, 9)
    assert [row.value.id for row in read_published(spark, str(tmp_path)).orderBy("offset").collect()] == [1, 2]
    # The run that failed has left nothing, whose number the next one would have to take.
    (manifest,) = manifests(tmp_path)
    assert [
        (each["topic"], each["partition"], each["records"], each["quarantined"]) for each in manifest["ranges"]
    ] == [*sorted([(topic, 0, 9, 7), (topic, 1, 1, 1), (other, 0, 1, 1)])]
    held = {file["topic"]: file for file in manifest["quarantine"]}
    assert [(part["partition"], part["first"], part["last"], part["rows"]) for part in held[topic]["offsets"]] == [
        (0, 1, 7, 7),
        (1, 0, 0, 1),
    ]
    assert held[topic]["final"].startswith(f"_kafkalite/quarantine/{topic}/{topic}-quarantine-")
    documents = [json.loads(line) for line in (tmp_path / held[topic]["final"]).read_text().splitlines()]
    assert [base64.b64decode(each["value"]) for each in documents] == [*BAD, b"bad"]
    assert all(each["reason"].startswith(reason) for each, reason in zip(documents, BAD.values(), strict=False))
    assert documents[0] == {
        "topic": topic,
        "partition": 0,
        "offset": 1,
        "timestamp": NEW_YEAR_MS,
        "reason": 'field id is "x", and BIGINT is expected',
        "key": base64.b64encode(ALL_BYTES).decode(),
        "value": base64.b64encode(b'{"id": "x"}').decode(),
        "headers": [{"key": "h", "value": base64.b64encode(ALL_BYTES).decode()}],
    }


@pytest.mark.any_spark
def test_what_no_line_of_text_can_be_goes_into_quarantine(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new()
    send(topics, topic, b"good", None, b"two\nlines", b"two\rlines", b"\xff")
    summary = load(topics, topic, tmp_path, "--format", "text", "--max-quarantined", "4")
    assert (summary["records"], summary["quarantined_records"]) == (1, 4)
    assert [bytes(row.value) for row in read_published(spark, str(tmp_path)).collect()] == [b"good"]
    (manifest,) = manifests(tmp_path)
    documents = [json.loads(each) for each in (tmp_path / manifest["quarantine"][0]["final"]).read_text().splitlines()]
    assert [each["reason"].partition(",")[0] for each in documents] == [
        "the value is null",
        "the value holds a line break",
        "the value holds a line break",
        "the value is not UTF-8",
    ]


@pytest.mark.any_spark
def test_a_run_that_decodes_nothing_publishes_its_quarantine(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    send(topics, topic, b"x", b"y")
    summary = load(topics, topic, tmp_path, "--value", "registry", "--max-quarantined", "100%")
    assert (summary["files"], summary["quarantined_records"]) == (0, 2)
    assert load(topics, topic, tmp_path, "--value", "registry")["quarantined_records"] == 0


NINTH_OF_MAY_MS = int(datetime(2014, 5, 9, 10, tzinfo=UTC).timestamp() * 1000)
TIMES = {
    str(NINTH_OF_MAY_MS): "2014-05-09",
    "2014-05-09T23:30:00-02:00": "2014-05-10",
    "2014-05-09": "2014-05-09",
    "12:30": None,
    "-1": None,
    "1e12": None,
    "9" * 18: None,
    "2014-13-01": None,
    "": None,
}


def test_directories_go_by_a_header(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    for text in TIMES:
        send(topics, topic, b"v", headers=[("at", b"2001-01-01"), ("at", text.encode()), ("other", b"1")])
    send(topics, topic, b"v")
    send(topics, topic, b"v", headers=[("at", None)])
    summary = load(topics, topic, tmp_path, "--event-time", "header:at")
    fallbacks = 2 + sum(day is None for day in TIMES.values())
    assert (summary["records"], summary["event_time_fallbacks"]) == (len(TIMES) + 2, fallbacks)
    (manifest,) = manifests(tmp_path)
    assert manifest["event_time_fallbacks"] == fallbacks
    rows = {file["final"].split("/")[1]: file["records"] for file in manifest["files"]}
    assert rows == {"day=2014-05-09": 2, "day=2014-05-10": 1, "day=2013-01-01": fallbacks}


@pytest.mark.any_spark
@pytest.mark.parametrize(("file_format", "framed"), [("parquet", True), *in_soak(("orc", False))])
def test_directories_go_by_a_field_of_the_value(topics: Topics, tmp_path: Path, file_format: str, framed: bool) -> None:
    topic = topics.new()
    frame = b"\0\0\0\0\1" if framed else b""
    for text, day in TIMES.items():
        field: object = int(text) if day is not None and text.isdigit() else text
        send(topics, topic, frame + json.dumps({"meta": {"at": field}}).encode())
    send(topics, topic, frame + b"{}", frame + b"no json", None)
    given = ["--event-time", "json:meta.at", "--format", file_format, "--partition-by", "hour"]
    summary = load(topics, topic, tmp_path, *given, *(["--value", "registry"] if framed else []))
    assert summary["event_time_fallbacks"] == 3 + sum(day is None for day in TIMES.values())
    (manifest,) = manifests(tmp_path)
    found = sorted(file["final"].partition("/")[2].rpartition("/")[0] for file in manifest["files"])
    assert found == [
        "day=2013-01-01/hour=00",
        "day=2014-05-09/hour=00",
        "day=2014-05-09/hour=10",
        "day=2014-05-10/hour=01",
    ]


@pytest.mark.any_spark
def test_wrong_options_are_told_before_anything_runs(topics: Topics, tmp_path: Path) -> None:
    for given, told in [
        (["--codec", "brotli"], "--codec brotli: --format parquet has none, snappy, gzip, lz4_raw, zstd"),
        (["--value", "json", "--value-schema", "id NUMBER"], "'id NUMBER' is neither DDL such as"),
        (
            ["--value", "json", "--value-schema", "a ARRAY<STRUCT<m: MAP<INT, STRING>>>"],
            "field a[].m is MAP<INT,STRING>, and the keys of a map in JSON can only be STRING: give MAP<STRING,STRING>",
        ),
        (["--format", "avro"], "'avro' is not one of 'parquet', 'orc', 'text'"),
    ]:
        arguments = ["--bootstrap-server", topics.bootstrap, "--topic", "absent", "--destination", str(tmp_path / "to")]
        result = CliRunner().invoke(hadoop_load.main, [*arguments, *given])
        assert (result.exit_code, told in result.output) == (2, True), result.output
    assert not (tmp_path / "to").exists()


@pytest.mark.any_spark
def test_values_of_different_types_are_no_one_frame(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new()
    for _ in range(2):
        send(topics, topic, b'{"id": 1}')
        load(topics, topic, tmp_path)
    # As versions did that let a run change the type.
    second = sorted((tmp_path / "_kafkalite" / "manifests").glob("*.json"))[1]
    document = json.loads(second.read_text())
    document["layout"] |= {"value": "json", "value_schema": "id BIGINT"}
    second.write_text(json.dumps(document))
    with pytest.raises(ManifestError, match=r"--value bytes; .*--value json --value-schema 'id BIGINT'; read their"):
        read_published(spark, str(tmp_path))

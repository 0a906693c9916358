"""Times in what the jobs write: their type in files, their units in JSON, and times that no column can hold."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import compact, hadoop_load, replay, stream
from spark_kafkalite.spark import read_published
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from .job_runs import BY_TASKS, NEW_YEAR_MS, data_files, failure, load, manifests, run_alone
from .topics import Topics

ANY_TIME = {"message_timestamp_after_max_ms": str(2**63 - 1)}
NANOSECONDS = 1_767_225_600_000_000_000
MICROSECONDS_IN_UTC = ("INT64", "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds")


def send(topics: Topics, topic: str, *values: bytes, at_ms: int = NEW_YEAR_MS) -> None:
    for value in values:
        topics.producer.send(topic, value, key=b"k", timestamp_ms=at_ms, headers=[("h", b"1"), ("n", None)])
    topics.producer.flush(PATIENCE_S)


def type_of_times(path: Path, name: str = "timestamp") -> tuple[str, str]:
    schema = pq.ParquetFile(path).schema
    column = next(schema.column(number) for number in range(len(schema)) if schema.column(number).path == name)
    return column.physical_type, str(column.logical_type)[: len(MICROSECONDS_IN_UTC[1])]


@pytest.mark.any_spark
def test_times_are_microseconds_in_utc_whoever_writes_a_file(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic, decoded = topics.new(), topics.new()
    # As an earlier session of this test run may have left it.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    for way in ((), BY_TASKS):
        send(topics, topic, b"v")
        load(topics, topic, tmp_path, *way)
    send(topics, decoded, b'{"at": "1500-01-01T00:00:00Z"}', at_ms=-1)
    load(topics, decoded, tmp_path, "--value", "json", "--value-schema", "at TIMESTAMP")
    (by_spark,) = (tmp_path / file for file in data_files(tmp_path) if file.startswith(decoded))
    assert type_of_times(by_spark) == type_of_times(by_spark, "value.at") == MICROSECONDS_IN_UTC
    assert pq.read_table(by_spark, partitioning=None)["value"][0].as_py() == {"at": datetime(1500, 1, 1, tzinfo=UTC)}
    files = [tmp_path / file for file in data_files(tmp_path) if file.startswith(topic)]
    assert [type_of_times(file) for file in files] == [MICROSECONDS_IN_UTC] * 2
    run_alone(compact, "--destination", str(tmp_path), "--topic", topic, "--min-files", "2", "--older-than", "0s")
    (merged,) = (tmp_path / file for file in data_files(tmp_path) if file.startswith(topic))
    assert type_of_times(merged) == MICROSECONDS_IN_UTC
    assert read_published(spark, str(tmp_path), topic=topic).where("timestamp = '2013-01-01'").count() == 2


@pytest.mark.any_spark
@pytest.mark.parametrize(
    "options",
    [(), BY_TASKS, *([("--format", "orc"), ("--value", "registry")] if SOAK else [])],
)
def test_a_record_of_a_time_that_no_column_holds_goes_into_quarantine(
    topics: Topics, spark: SparkSession, tmp_path: Path, options: tuple[str, ...]
) -> None:
    topic = topics.new(**ANY_TIME)
    good = b"\0\0\0\0\1good"
    send(topics, topic, good)
    send(topics, topic, b"nano \xff", at_ms=NANOSECONDS)
    send(topics, topic, good)
    arguments = ("--topic", topic, "--destination", str(tmp_path), *options)
    refused = failure(hadoop_load, topics, *arguments, code=4)
    assert (
        f"1 of 3 records cannot be decoded, and --max-quarantined is 0; the first is offset 1 of {topic}-0" in refused
    )
    assert f"the record's timestamp, {NANOSECONDS} ms, is beyond what a column of microseconds can hold" in refused
    summary = load(topics, topic, tmp_path, *options, "--max-quarantined", "1")
    assert (summary["records"], summary["quarantined_records"]) == (2, 1)
    (manifest,) = manifests(tmp_path)
    assert [(each["records"], each["quarantined"], each["max_timestamp"]) for each in manifest["ranges"]] == [
        (3, 1, NEW_YEAR_MS)
    ]
    (document,) = (tmp_path / manifest["quarantine"][0]["final"]).read_text().splitlines()
    found = json.loads(document)
    assert found.pop("reason").startswith(f"the record's timestamp, {NANOSECONDS} ms, is beyond")
    assert b64decode(found.pop("value")) == b"nano \xff"
    assert found == {
        "topic": topic,
        "partition": 0,
        "offset": 1,
        "timestamp": NANOSECONDS,
        "key": "aw==",
        "headers": [{"key": "h", "value": "MQ=="}, {"key": "n"}],
    }
    assert read_published(spark, str(tmp_path), check_counts=True).count() == 2


@pytest.mark.any_spark
def test_a_replay_into_files_keeps_the_others(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic = topics.new(**ANY_TIME)
    send(topics, topic, b"a")
    send(topics, topic, b"nano", at_ms=NANOSECONDS)
    arguments = ("--bootstrap-server", topics.bootstrap, "--topic", topic, "--from-offsets", '{"0": 0}')
    result = CliRunner().invoke(replay.main, [*arguments, "--destination", str(tmp_path)])
    assert result.exit_code == 0, result.output
    told = "; 1 more, with timestamps that no column can hold, are under _kafkalite/quarantine"
    assert result.output.splitlines()[-1] == f"replayed 1 records to {tmp_path}{told}"
    # A load may go on there, in the same layout.
    assert "--partition-by day" in failure(
        hadoop_load, topics, "--topic", topic, "--destination", str(tmp_path), "--partition-by", "hour", code=2
    )


@pytest.mark.any_spark
def test_a_replay_by_time_counts_a_record_of_any_time(topics: Topics) -> None:
    topic = topics.new(**ANY_TIME)
    send(topics, topic, b"a")
    send(topics, topic, b"nano", at_ms=NANOSECONDS)
    arguments = ("--bootstrap-server", topics.bootstrap, "--topic", topic, "--from-timestamp", "2013-01-01T00:00:00Z")
    until = ("--to-timestamp", "2013-01-02T00:00:00Z", "--to-topic", topics.new(), "--exact-time")
    result = CliRunner().invoke(replay.main, [*arguments, *until, "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    planned = json.loads(result.stdout)
    assert (planned["offsets"], planned["records_in_time"], planned["records_outside"]) == (2, 1, 1)


@pytest.mark.any_spark
def test_the_source_names_the_record(topics: Topics, spark: SparkSession) -> None:
    topic = topics.new(**ANY_TIME)
    send(topics, topic, b"a", b"b")
    send(topics, topic, b"nano", at_ms=NANOSECONDS)
    with pytest.raises(Exception) as caught:
        topics.read(topic).collect()
    told = f"{topic}-0: the record at offset 2 has the timestamp {NANOSECONDS} ms, which no timestamp of Spark can be"
    assert told in str(caught.value)
    reader = spark.read.format("kafkalite").option("kafka.bootstrap.servers", topics.bootstrap)
    rows = reader.option("subscribe", topic).schema("offset BIGINT, timestamp BIGINT").load().collect()
    assert [row.timestamp for row in rows] == [NEW_YEAR_MS, NEW_YEAR_MS, NANOSECONDS]
    assert reader.option("subscribe", topic).schema("offset BIGINT").load().count() == 3


@pytest.mark.any_spark
def test_a_stream_into_a_topic_keeps_the_times(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    topic, target = topics.new(**ANY_TIME), topics.new(**ANY_TIME)
    for at_ms in (-1, NANOSECONDS):
        send(topics, topic, b"v", at_ms=at_ms)
    arguments = ("--topic", topic, "--to-topic", target, "--checkpoint", str(tmp_path))
    result = CliRunner().invoke(stream.main, ["--bootstrap-server", topics.bootstrap, *arguments])
    assert result.exit_code == 0, result.output
    reader = spark.read.format("kafkalite").options(**topics.options({"subscribe": target}))
    found = reader.schema("offset BIGINT, timestamp BIGINT").load().orderBy("offset").collect()
    assert [row.timestamp for row in found] == [-1, NANOSECONDS]


AT = datetime(2026, 1, 1, tzinfo=UTC)
AT_MS = 1_767_225_600_000
TIMES = {
    str(AT_MS): AT,
    f'"{AT_MS}"': AT,
    '"2026-01-01T01:00:00+01:00"': AT,
    '"2026-01-01"': AT,
    # Seconds are no unit of JSON: this is a day of January 1970.
    str(AT_MS // 1000): datetime(1970, 1, 21, 10, 53, 45, 600_000, UTC),
    "-1": datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
    "null": None,
}
NO_TIMES = ("1767225600.5", '"12:30"', '"2026-02-30"', "true", "{}", '""', str(NANOSECONDS))


@pytest.mark.versions
def test_numbers_in_json_are_milliseconds_wherever_they_are(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    topic = topics.new()
    for text in TIMES:
        send(topics, topic, f'{{"at": {text}, "in": [{{"at": {text}}}], "m": {{"k": {text}}}}}'.encode())
    for text in NO_TIMES:
        send(topics, topic, f'{{"at": {text}}}'.encode(), f'{{"at": 1, "in": [null, {{"at": {text}}}]}}'.encode())
        send(topics, topic, f'{{"m": {{"k": {text}}}}}'.encode())
    schema = "at TIMESTAMP, in ARRAY<STRUCT<at: TIMESTAMP>>, m MAP<STRING, TIMESTAMP>, n STRING"
    given = ("--value", "json", "--value-schema", schema, "--event-time", "json:at", "--max-quarantined", "100")
    summary = load(topics, topic, tmp_path, *given)
    assert (summary["records"], summary["quarantined_records"]) == (len(TIMES), 3 * len(NO_TIMES))
    assert summary["early_event_times"] == 1
    rows = read_published(spark, str(tmp_path)).selectExpr("offset", "day", "to_json(value) AS value").collect()
    for row, at in zip(sorted(rows, key=lambda row: row.offset), TIMES.values(), strict=True):
        value = json.loads(row.value)
        if at is None:
            assert value == {"in": [{}], "m": {"k": None}}
        else:
            shown = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            assert value == {"at": shown, "in": [{"at": shown}], "m": {"k": shown}}
            # The directory is of the same time. Numbers before 1970 are no event time.
            assert str(row.day) == (at.date().isoformat() if at.year >= 1970 else "2013-01-01")
    (manifest,) = manifests(tmp_path)
    lines = (tmp_path / manifest["quarantine"][0]["final"]).read_text().splitlines()
    reasons = [json.loads(line)["reason"] for line in lines]
    for number, text in enumerate(NO_TIMES):
        for reason, path in zip(reasons[3 * number :], ("at", "in[1].at", "m.k"), strict=False):
            assert reason.startswith(f"field {path} is {text}, and TIMESTAMP (ms since the epoch"), reason


@pytest.mark.any_spark
@pytest.mark.parametrize("options", [(), BY_TASKS])
def test_a_record_after_the_year_9999_goes_into_quarantine_of_a_delta_table(
    topics: Topics, spark: SparkSession, tmp_path: Path, options: tuple[str, ...]
) -> None:
    topic, last_ms = topics.new(**ANY_TIME), 253_402_300_799_999
    send(topics, topic, b"last", at_ms=last_ms)
    send(topics, topic, b"later", at_ms=last_ms + 1)
    send(topics, topic, b"nano", at_ms=NANOSECONDS)
    arguments = ("--topic", topic, "--destination", str(tmp_path), "--table", "delta", *options)
    refused = failure(hadoop_load, topics, *arguments, code=4)
    assert f"offset 1 of {topic}-0: the record's timestamp, {last_ms + 1} ms, is after the year 9999" in refused
    assert "--value" not in refused
    summary = load(topics, topic, tmp_path, "--table", "delta", *options, "--max-quarantined", "2")
    assert (summary["records"], summary["quarantined_records"]) == (1, 2)
    assert summary["tables"][topic]["published"]
    (file,) = data_files(tmp_path)
    assert file.startswith(f"{topic}/day=9999-12-31/")
    assert read_published(spark, str(tmp_path), check_counts=True).count() == 1

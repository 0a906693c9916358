"""Topics between two clusters: what is kept, what comes later, what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from spark_kafkalite.client.admin.configs import ConfigChange
from spark_kafkalite.jobs import mirror
from spark_kafkalite.jobs.destination.lease import Holder, lease_path
from spark_kafkalite.jobs.program.outcome import ExitCode
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab.apache_kafka import ApacheKafka
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from .job_runs import NEW_YEAR_MS, load
from .topics import Topics

_COUNTER = itertools.count()


@pytest.fixture(scope="module")
def far_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The other cluster."""
    overrides = {"log.initial.task.delay.ms": 86_400_000, "log.retention.ms": -1}
    with BrokerProcess(tmp_path_factory.mktemp("far-broker"), overrides=overrides) as running:
        yield running


@pytest.fixture
def far(far_broker: BrokerProcess, spark: SparkSession) -> Iterator[Topics]:
    with Topics(far_broker.bootstrap, spark, f"far{next(_COUNTER)}") as made:
        yield made


def invoke(near: Topics, far: Topics, checkpoint: str, *arguments: str) -> Result:
    ends = ["--from-bootstrap-server", near.bootstrap, "--to-bootstrap-server", far.bootstrap]
    return CliRunner().invoke(mirror.main, [*ends, "--checkpoint", checkpoint, *arguments])


def mirrored(near: Topics, far: Topics, checkpoint: str, *arguments: str) -> dict[str, Any]:
    result = invoke(near, far, checkpoint, *arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.output.strip().splitlines()[-1])
    return document


def refused(near: Topics, far: Topics, checkpoint: str, *arguments: str, exit_code: int = 1) -> str:
    result = invoke(near, far, checkpoint, *arguments)
    assert result.exit_code == exit_code, result.output
    return result.output.splitlines()[-1]


def rows(topics: Topics, topic: str) -> list[tuple[Any, ...]]:
    """Return what a mirror keeps of each record, in the order of partitions and offsets."""
    found = topics.read(topic, includeHeaders="true").orderBy("partition", "offset").collect()
    return [
        (
            row.partition,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            [(each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ()],
            row.timestamp,
        )
        for row in found
    ]


def fill(topics: Topics, topic: str) -> None:
    topics.fill(topic, ["a", "b"], 0, timestamp_ms=NEW_YEAR_MS, headers=[("h", b"1"), ("h", None)], key=b"k")
    # Not where its key would have it go.
    topics.fill(topic, ["c"], 2, timestamp_ms=NEW_YEAR_MS + 7, key=b"k")
    topics.producer.send(topic, None, key=b"tombstone", partition=1, timestamp_ms=NEW_YEAR_MS).result(PATIENCE_S)


def test_a_mirror_keeps_records_and_goes_on_where_it_stood(topics: Topics, far: Topics, checkpoint: str) -> None:
    topic = topics.new(3, retention_ms="-1")
    fill(topics, topic)
    # Another mirror has ended without a word.
    holder = Holder("r1", "h", 7, "u", "2026-01-01T00:00:00+00:00", 1_000)
    LocalFiles(Path(checkpoint)).write_new(lease_path(1), json.dumps(asdict(holder)))
    first = mirrored(topics, far, checkpoint, "--topic", topic, "--with-configs")
    assert first["topics"] == {topic: {"copied": 4, "lag": 0, "lag_ms": None}}
    assert rows(far, topic) == rows(topics, topic) != []
    assert far.admin.describe_configs(topic=topic)["retention.ms"].value == "-1"
    # The target grows with its source.
    topics.admin.create_partitions({topic: 4})
    topics.fill(topic, ["d"], 3)
    topics.fill(topic, ["e"], 0)
    assert mirrored(topics, far, checkpoint, "--topic", topic)["copied"] == 2
    assert rows(far, topic) == rows(topics, topic)
    # What is said for people; the next run has nothing to do.
    said = invoke(topics, far, checkpoint, "--topic", topic)
    assert said.output.splitlines()[-1] == f"mirrored 0 offsets ({topic} 0); 0 offsets behind: nothing waits"
    # Lag tools of the source see how far it is.
    cluster = far.admin.describe_cluster().cluster_id
    committed = topics.admin.group_offsets(f"kafkalite-mirror-{cluster}")
    assert sorted(offset.offset for tp, offset in committed.items() if tp.topic == topic) == [1, 1, 1, 3]
    # What was copied is not left out in silence.
    other = topics.new()
    said_of_other = refused(topics, far, checkpoint, "--topic", other)
    assert f"the checkpoint of a mirror of {topic}, but {topic} is not to be copied any more" in said_of_other
    assert other not in far.admin.list_topics()


def test_a_mirror_keeps_times_that_spark_cannot_hold(topics: Topics, far: Topics, checkpoint: str) -> None:
    topic = topics.new(retention_ms="-1", message_timestamp_after_max_ms=str(2**63 - 1))
    # None, and nanoseconds.
    times = [-1, NEW_YEAR_MS * 1_000_000]
    for timestamp_ms in times:
        topics.fill(topic, ["v"], timestamp_ms=timestamp_ms)
    mirrored(topics, far, checkpoint, "--topic", topic, "--with-configs")
    reader = far.spark.read.format("kafkalite").options(**far.options({"subscribe": topic}))
    found = reader.schema("offset BIGINT, timestamp BIGINT").load().orderBy("offset").collect()
    assert [row.timestamp for row in found] == times


@pytest.mark.versions
def test_what_would_be_copied_without_end_is_refused(topics: Topics, far: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    checkpoint, back = str(tmp_path / "there"), str(tmp_path / "back")
    assert "so it would be copied into itself" in refused(topics, topics, checkpoint, "--topic", topic)
    pattern = ("--topic-pattern", topic, "--topic-prefix", "copy.")
    assert "is on the same cluster and is copied as well" in refused(topics, topics, checkpoint, *pattern)
    topics.fill(topic, ["a"])
    mirrored(topics, far, checkpoint, "--topic", topic)
    said = refused(far, topics, back, "--topic", topic)
    assert f"shows a mirror that copies {topic} back to {topic}" in said
    # Nothing was begun.
    assert not Path(back).exists()


def test_a_checkpoint_that_is_not_the_mirror_s_is_refused_before_anything_is_created(
    topics: Topics, far: Topics, checkpoint: str, tmp_path: Path
) -> None:
    topic = topics.new()
    topics.fill(topic, ["a"])
    load(topics, topic, tmp_path / "loaded")
    assert "the destination of loads" in refused(topics, far, str(tmp_path / "loaded"), "--topic", topic)
    assert "'(' is not a regular expression" in invoke(topics, far, checkpoint, "--topic-pattern", "(").output
    # One that another mirror works with.
    holder = Holder("r1", "h", 7, "u", "2026-01-01T00:00:00+00:00", 60_000)
    LocalFiles(Path(checkpoint)).write_new(lease_path(1), json.dumps(asdict(holder)))
    said = invoke(topics, far, checkpoint, "--topic", topic, "--wait", "0")
    assert said.exit_code == 6
    assert "run r1 (host h, pid 7, user u, since 2026-01-01T00:00:00+00:00) holds the checkpoint" in said.output
    assert topic not in far.admin.list_topics()


def test_a_record_that_the_target_refuses_is_named_or_goes_to_quarantine(
    topics: Topics, far: Topics, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, quarantine = topics.new(), f"{far.bootstrap.rpartition(':')[2]}-quarantine"
    topics.fill(topic, ["a", "x" * 20_000, "b"], key=b"k", headers=[("h", b"1")], timestamp_ms=NEW_YEAR_MS)
    far.admin.create_topic(topic, 1, configs={"max.message.bytes": "10000"})
    result = invoke(topics, far, checkpoint, "--topic", topic, "--report-every", "600")
    assert (result.exit_code, len(result.output.splitlines())) == (5, 1), result.output
    assert f"the record at offset 1 of {topic}-0 is rejected: {topic}-0: " in result.output
    assert "--quarantine-topic" in result.output and "run it again" not in result.output
    assert "Traceback" not in caplog.text
    # What the job stopped at is sent again.
    far.admin.delete_records({TopicPartition(topic, 0): -1})
    summary = mirrored(topics, far, checkpoint, "--topic", topic, "--quarantine-topic", quarantine)
    assert (summary["copied"], summary["quarantined"]) == (3, 1)
    copied = rows(far, topic)
    assert [row for row in rows(topics, topic) if len(row[2]) < 20_000] == copied != []
    [[_, key, value, headers, _]] = rows(far, quarantine)
    assert (key, value) == (b"k", b"x" * 20_000)
    told = dict(headers)
    assert told.pop("kafkalite-quarantine-message").startswith(f"{topic}-0: the broker refused a record".encode())
    assert told == {
        "h": b"1",
        "kafkalite-quarantine-topic": topic.encode(),
        "kafkalite-quarantine-partition": b"0",
        "kafkalite-quarantine-offset": b"1",
        "kafkalite-quarantine-timestamp": b"%d" % NEW_YEAR_MS,
        "kafkalite-quarantine-target": topic.encode(),
        "kafkalite-quarantine-error": b"MESSAGE_TOO_LARGE",
    }


if SOAK:  # Each query takes some seconds, and Apache Kafka long to start.

    def test_a_checkpoint_belongs_to_one_pair_of_clusters_and_their_topics(
        topics: Topics, far: Topics, checkpoint: str
    ) -> None:
        topic = topics.new()
        topics.fill(topic, ["a"])
        mirrored(topics, far, checkpoint, "--topic", topic)
        said = refused(topics, far, checkpoint, "--topic", topic, "--topic-prefix", "other.")
        assert "with prefix '', but this is one" in said
        said = refused(topics, far, checkpoint, "--topic", f"{topic},absent", exit_code=ExitCode.SOURCE)
        assert "no such topic: absent" in said
        far.admin.delete_topics([topic])
        said = refused(topics, far, checkpoint, "--topic", topic)
        assert (
            f"topic {topic}: it was deleted since this mirror wrote to it; what was copied before would be missing"
            in said
        )
        far.admin.create_topic(topic, 1)
        said = refused(topics, far, checkpoint, "--topic", topic, exit_code=ExitCode.DATA_LOSS)
        assert "it was deleted and created again" in said

    def test_a_batch_that_fails_is_told_in_one_line_and_copied_by_the_next_run(
        topics: Topics, far: Topics, checkpoint: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = topics.new()
        topics.fill(topic, ["x" * 20_000])
        far.admin.create_topic(topic, 1, configs={"max.message.bytes": "10000"})
        result = invoke(topics, far, checkpoint, "--topic", topic, "--report-every", "600")
        assert (result.exit_code, len(result.output.splitlines())) == (5, 1), result.output
        assert f"{topic}-0: the broker refused a record" in result.output
        assert "Traceback" not in caplog.text
        far.admin.incremental_alter_configs([ConfigChange("max.message.bytes", "set", "100000")], topic=topic)
        assert mirrored(topics, far, checkpoint, "--topic", topic)["copied"] == 1
        assert rows(far, topic) == rows(topics, topic) != []

    @pytest.mark.kafka
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("from_kafka", [True, False], ids=["from_kafka", "to_kafka"])
    def test_a_mirror_from_and_to_apache_kafka(
        topics: Topics, apache_kafka: ApacheKafka, spark: SparkSession, checkpoint: str, from_kafka: bool
    ) -> None:
        with Topics(apache_kafka.bootstrap, spark, f"kafka{next(_COUNTER)}") as kafka:
            source, target = (kafka, topics) if from_kafka else (topics, kafka)
            topic, other = source.new(3, retention_ms="-1"), source.new(1, "other")
            pattern = ("--topic-pattern", f"^({topic}|{other})$", "--topic-prefix", "mirrored.", "--with-configs")
            fill(source, topic)
            for values in (["one"], ["two", "three"]):
                source.fill(other, values)
                mirrored(source, target, checkpoint, *pattern)
                for each in (topic, other):
                    assert rows(target, f"mirrored.{each}") == rows(source, each) != []

"""The ten facts of the engine that a source written without them gets wrong, one test or more each.

tests/unit/spark/reading/test_stream_reader.py tests some of them without Spark.
"""

import zipfile
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader

from spark_kafkalite.functions import write_update
from spark_kafkalite.spark import register
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.offset_ranges import PACK_MIN_TASKS
from tests.patience import wait_until

from .topics import await_end, logged_offsets

pytestmark = [pytest.mark.spark]

IDLE_REPORTS = "spark.sql.streaming.noDataProgressEventInterval"


def test_1_nothing_depends_on_commit_which_lags_and_never_comes_for_the_last_batch(topics, checkpoint):
    topic = topics.new()
    for round_number in range(2):
        topics.fill(topic, [round_number])
        # One batch in each run: its commit() never comes.
        assert topics.run(topics.stream(topic), checkpoint) == [str(round_number)]


@pytest.mark.versions
def test_2_a_first_batch_that_failed_is_repeated_from_its_own_start(topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, range(5))

    def fail(batch_id, rows):
        raise RuntimeError("on purpose")

    query, _ = topics.collect(topics.stream(topic), checkpoint, each=fail)
    with pytest.raises(Exception, match="on purpose"):
        await_end(query)
    topics.fill(topic, range(5, 7))
    # The engine asks for the initial offset again, and by now the answer is 7.
    assert sorted(topics.run(topics.stream(topic, startingOffsets="latest"), checkpoint)) == list("0123456")
    assert logged_offsets(checkpoint)[0] == {"$initial": {topic: {"0": 0}}, topic: {"0": 5}}


def test_2_latest_is_decided_by_the_first_trigger(topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, ["before"])
    stream = topics.stream(topic, startingOffsets="latest")
    assert topics.run(stream, checkpoint) == []
    topics.fill(topic, ["between"])
    assert topics.run(stream, checkpoint) == ["between"]


@pytest.mark.versions
def test_3_a_stopped_query_leaves_no_process_although_stop_is_not_called(topics, checkpoint, spark):
    java_pid = spark.sparkContext._gateway.proc.pid

    def runners() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes()
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if b"python_streaming_source_runner" in command and parent == java_pid:
                    found.append(int(entry.name))
        return found

    query, _ = topics.collect(topics.stream(topics.new()), checkpoint, {"processingTime": "0 seconds"})
    query.processAllAvailable()
    assert runners()
    query.stop()
    wait_until(lambda: not runners(), lambda: f"the end of the source's process, now {runners()}", poll_s=0.05)


@pytest.mark.versions
def test_4_an_idle_query_does_not_spin(topics, checkpoint, spark, request):
    # Without this an idle query reports every ten seconds. The time that it spends in latestOffset shows that it waits
    # there.
    spark.conf.set(IDLE_REPORTS, "500")
    request.addfinalizer(lambda: spark.conf.unset(IDLE_REPORTS))
    topic = topics.new()
    topics.fill(topic, ["x"])
    query, values = topics.collect(topics.stream(topic), checkpoint, {"processingTime": "0 seconds"})
    query.processAllAvailable()
    before = query.lastProgress.timestamp
    idle = wait_until(
        lambda: (last := query.lastProgress).timestamp != before and not last.numInputRows and last,
        "a progress of the idle query",
        poll_s=0.1,
    )
    assert idle.durationMs["latestOffset"] >= 100
    # It still sees new records.
    topics.fill(topic, ["y"])
    query.processAllAvailable()
    assert values == ["x", "y"]
    query.stop()


def test_6_filters_are_not_pushed_and_two_filters_over_one_load_are_right(topics):
    # PySpark 4.0 has nothing to push them with.
    pushed = getattr(DataSourceReader, "pushFilters", None)
    assert getattr(KafkaliteBatchReader, "pushFilters", None) is pushed
    topic = topics.new()
    topics.fill(topic, range(10))
    frame = topics.read(topic)
    assert frame.where("offset < 3").count() == 3
    assert frame.where("offset >= 3").count() == 7


@pytest.mark.versions
def test_7_register_repairs_streams_whose_package_came_with_py_files(topics, spark, tmp_path):
    archive = tmp_path / "comes_with_py_files.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(
            "comes_with_py_files.py",
            "from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader\n"
            "class Reader(SimpleDataSourceStreamReader):\n"
            "    def initialOffset(self): return {'at': 0}\n"
            "    def read(self, start): return iter([(1,)] if start['at'] == 0 else []), {'at': 1}\n"
            "    def readBetweenOffsets(self, start, end): return iter([(1,)])\n"
            "class Source(DataSource):\n"
            "    @classmethod\n"
            "    def name(cls): return 'comes_with_py_files'\n"
            "    def schema(self): return 'number int'\n"
            "    def simpleStreamReader(self, schema): return Reader()\n",
        )
    spark.sparkContext.addPyFile(str(archive))
    register(spark)
    import comes_with_py_files

    spark.dataSource.register(comes_with_py_files.Source)
    seen = []
    query = (
        spark.readStream.format("comes_with_py_files").load().writeStream
        .foreachBatch(lambda batch, number: seen.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="0 seconds").start()
    )  # fmt: skip
    query.processAllAvailable()
    query.stop()
    assert [row.number for row in seen] == [1]
    # Registering by hand works beside Spark's own discovery.
    topic = topics.new()
    topics.fill(topic, ["x"])
    assert topics.values(topic) == ["x"]


@pytest.mark.versions
def test_8_a_users_schema_is_a_projection(topics, spark):
    topic = topics.new()
    topics.fill(topic, ["x", "y"])
    options = topics.options({"subscribe": topic})
    frame = spark.read.format("kafkalite").schema("offset bigint, value binary").options(**options).load()
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(0, b"x"), (1, b"y")]
    headers = "headers array<struct<key:string,value:binary>>"
    assert spark.read.format("kafkalite").schema(headers).options(**options).load().collect()[0].headers is None
    # Columns that are not asked for are produced all the same, and dropped by Spark.
    assert topics.read(topic).select("partition").distinct().count() == 1
    assert topics.read(topic).select(F.lit(1)).count() == 2


@pytest.mark.versions
def test_9_update_mode_is_refused_by_the_engine_and_write_update_is_the_way(topics, checkpoint):
    topic = topics.new()
    counted = topics.stream(topic).groupBy("value").count().selectExpr("cast(count AS string) AS value")
    query = (
        counted.writeStream.format("kafkalite").outputMode("update").options(**topics.options({"topic": topic}))
        .option("checkpointLocation", checkpoint).start()
    )  # fmt: skip
    with pytest.raises(Exception, match="does not support Update mode"):
        await_end(query)
    assert write_update(counted, topics.options({"topic": topic}))._jwrite is not None


def test_10_many_small_partitions_share_tasks(topics):
    topic = topics.new(40)
    for partition in range(40):
        topics.fill(topic, [partition], partition)
    frame = topics.read(topic)
    assert frame.rdd.getNumPartitions() == PACK_MIN_TASKS
    assert topics.values(topic) == [str(partition) for partition in range(40)]
    # An option that says how to split is obeyed instead.
    assert topics.read(topic, maxRecordsPerPartition=1).rdd.getNumPartitions() == 40

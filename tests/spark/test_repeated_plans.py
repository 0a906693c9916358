"""A topic as the static side of a streaming join, which grows between two micro-batches; views and repeated actions."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyspark
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_kafkalite.functions import latest
from tests.patience import wait_until

from .topics import Topics

pytestmark = pytest.mark.spark

# PySpark 4.0 plans a batch read for each action.
KEEPS_PLANS = not pyspark.__version__.startswith("4.0.")
WARNING = re.compile(
    r".* WARN KafkaliteSource: \[subscribe=(\S+)\] this read is repeated with the offsets of its first action, which "
    r"Spark keeps: (\d+) newer offsets of (\S+) are not read\. Load the DataFrame again to read them; in a streaming "
    r"join, call spark_kafkalite\.functions\.latest inside foreachBatch \(docs/spark\.md\)"
)


def texts(frame: DataFrame) -> DataFrame:
    return frame.select(expr("CAST(key AS STRING) AS key"), expr("CAST(value AS STRING) AS value"))


class Join:
    """A stream of orders, whose keys are those of products."""

    def __init__(self, topics: Topics, checkpoint: str) -> None:
        self.topics = topics
        self.checkpoint = checkpoint
        self.products = topics.new(name="products")
        self.orders = topics.new(name="orders")
        self.product("tea", "green")

    def product(self, key: str, value: str) -> None:
        self.topics.fill(self.products, [value], key=key.encode())

    def stream(self) -> DataFrame:
        return self.topics.stream(self.orders).select(expr("CAST(value AS STRING) AS key"))

    def run(self, writer: DataStreamWriter) -> None:
        """Run two micro-batches, each with an order of tea and one of cups; the second product comes in between."""
        query = writer.option("checkpointLocation", self.checkpoint).start()
        for product in (None, "cup"):
            if product is not None:
                self.product(product, "blue")
            self.topics.fill(self.orders, ["tea", "cup"])
            query.processAllAvailable()
        query.stop()


@pytest.mark.versions
def test_latest_inside_foreach_batch_reads_a_topic_again(
    topics: Topics, checkpoint: str, warned: Callable[[str], list[str]]
) -> None:
    join, batches = Join(topics, checkpoint), list[list[Row]]()

    def enrich(batch: DataFrame, _: int) -> None:
        products = texts(latest(batch.sparkSession, topics.options({}), subscribe=join.products))
        batches.append(batch.join(products, "key").orderBy("key").collect())

    join.run(join.stream().writeStream.foreachBatch(enrich))
    rows = [row for batch in batches for row in batch]
    assert rows == [("tea", "green"), ("cup", "blue"), ("tea", "green")]
    assert not warned("this read is repeated")


@pytest.mark.versions
def test_a_static_side_that_was_loaded_once_is_stale_and_warned_of(
    topics: Topics, checkpoint: str, warned: Callable[[str], list[str]]
) -> None:
    join, rows = Join(topics, checkpoint), list[Row]()
    products = texts(topics.read(join.products))
    joined = join.stream().join(products, "key")
    join.run(joined.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.orderBy("key").collect())))
    if not KEEPS_PLANS:
        assert rows == [("tea", "green"), ("cup", "blue"), ("tea", "green")]
        return
    assert rows == [("tea", "green"), ("tea", "green")]
    wait_until(lambda: warned("this read is repeated"), "the warning")
    [line] = warned("this read is repeated")
    assert WARNING.fullmatch(line).groups() == (join.products, "1", join.products)


def test_actions_and_views_warn_when_the_log_has_moved(
    topics: Topics, spark: pyspark.sql.SparkSession, warned: Callable[[str], list[str]]
) -> None:
    topic = topics.new(2)
    frame = topics.read(topic)
    frame.createOrReplaceTempView("repeated")
    # An empty topic: no task has a range of it. A sort runs a task twice.
    assert frame.orderBy("offset").collect() == []
    assert frame.orderBy("offset").collect() == []
    topics.fill(topic, "abc", 1)
    assert not warned("this read is repeated")
    assert spark.table("repeated").count() == (0 if KEEPS_PLANS else 3)
    if KEEPS_PLANS:
        wait_until(lambda: warned("this read is repeated"), "the warning")
        assert WARNING.fullmatch(warned("this read is repeated")[0]).groups() == (topic, "3", topic)
    assert topics.read(topic).count() == 3
    # An end that is given does not move.
    given = topics.read(topic, endingOffsets=f'{{"{topic}":{{"0":0,"1":2}}}}')
    assert [given.count(), given.count()] == [2, 2]
    assert len(warned("this read is repeated")) == KEEPS_PLANS

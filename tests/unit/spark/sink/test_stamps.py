import random

import pyarrow as pa
import pytest

from spark_kafkalite.client.arrow import columns_of
from spark_kafkalite.spark.options.options import writer_options
from spark_kafkalite.spark.sink.stamps import HeaderStamps
from tests.seeds import SEED

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def stamp_of(row, batch=b"7", partition=b"2"):
    return [
        ("kafkalite-query", b"q"),
        ("kafkalite-batch", batch),
        ("kafkalite-partition", partition),
        ("kafkalite-row", str(row).encode()),
    ]


def headers_of(batch):
    return [[(each["key"], each["value"]) for each in headers] for headers in batch.column("headers").to_pylist()]


def test_rows_are_counted_over_the_batches_of_a_task():
    stamps = HeaderStamps("q", "7", 2)
    values = pa.record_batch({"value": [b"a", None, b"c"]})
    assert headers_of(stamps.stamp(values)) == [stamp_of(row) for row in range(3)]
    assert headers_of(stamps.stamp(values.slice(1))) == [stamp_of(row) for row in (3, 4)]


def test_stamps_stand_behind_the_headers_that_a_record_has():
    choose = random.Random(SEED)
    own = [
        None
        if choose.random() < 0.3
        else [(f"h{n}", choose.choice([None, b"", b"x"])) for n in range(choose.randrange(4))]
        for _ in range(50)
    ]
    column = pa.array([each and [{"key": pair[0], "value": pair[1]} for pair in each] for each in own], HEADERS)
    batch = pa.record_batch({"value": [b"v"] * 50, "headers": column}).slice(choose.randrange(10), 30)
    start = 50 - len(own) + batch.column("headers").offset
    stamped = HeaderStamps("q", "7", 2).stamp(batch)
    assert headers_of(stamped) == [(own[start + row] or []) + stamp_of(row) for row in range(30)]
    assert stamped.column("value").equals(batch.column("value"))
    # What the producer takes.
    assert columns_of(stamped).headers is not None


def test_headers_that_are_all_null_give_way():
    batch = pa.record_batch({"headers": pa.nulls(2, HEADERS), "value": [b"a", b"b"]})
    assert headers_of(HeaderStamps("q", "7", 2).stamp(batch)) == [stamp_of(0), stamp_of(1)]


def test_a_task_of_no_query_is_stamped_with_the_write(monkeypatch):
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: None)
    stamped = HeaderStamps.of_task("q").stamp(pa.record_batch({"value": [b"a"]}))
    assert headers_of(stamped) == [stamp_of(0, batch=b"0", partition=b"0")]


@pytest.mark.parametrize(("given", "stamps"), [({}, False), ({"stampHeaders": "true"}, True)])
def test_the_option(given, stamps):
    assert writer_options({"kafka.bootstrap.servers": "x:1", "topic": "t", **given}).stamp_headers is stamps

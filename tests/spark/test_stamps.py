"""Stamped headers: the same for records that a repeated batch writes again, and for no others."""

from collections import Counter
from pathlib import Path

import pytest

from spark_kafkalite.functions import write_update

from .topics import await_end

pytestmark = pytest.mark.spark

STAMPS = ("kafkalite-query", "kafkalite-batch", "kafkalite-partition", "kafkalite-row")


def stamped(topics, topic):
    """Return (headers as a dictionary, value) of all records."""
    rows = topics.read(topic, includeHeaders="true").collect()
    return [({each.key: bytes(each.value).decode() for each in row.headers}, bytes(row.value)) for row in rows]


def stamps_of(topics, topic):
    return Counter(tuple(headers[name] for name in STAMPS) for headers, _ in stamped(topics, topic))


def forget_last_commit(checkpoint):
    """Leave a checkpoint as a driver does that dies when its last batch is written and not committed."""
    last = max(
        (each for each in (Path(checkpoint) / "commits").iterdir() if each.name.isdigit()),
        key=lambda each: int(each.name),
    )
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_a_batch_write_counts_the_rows_of_each_partition(topics, spark):
    topic = topics.new()
    frame = spark.range(0, 30, 1, 3).selectExpr(
        "cast(id AS string) AS value", "array(named_struct('key', 'h', 'value', X'01')) AS headers"
    )
    options = topics.options({"topic": topic, "stampHeaders": "true"})
    for _ in range(2):
        frame.write.format("kafkalite").options(**options).mode("append").save()
    found = stamped(topics, topic)
    assert all(headers["h"] == "\1" for headers, _ in found)
    assert {tuple(headers[name] for name in STAMPS[1:]) for headers, _ in found} == {
        ("0", str(partition), str(row)) for partition in range(3) for row in range(10)
    }
    # Two writes, so two ids: nothing is taken for a repetition.
    assert len({headers["kafkalite-query"] for headers, _ in found}) == 2
    assert set(stamps_of(topics, topic).values()) == {1}


@pytest.mark.parametrize("way", [pytest.param("sink", marks=pytest.mark.versions), "write_update"])
def test_a_repeated_batch_has_the_stamps_that_it_had(topics, spark, checkpoint, way):
    source, target = topics.new(2), topics.new()
    options = topics.options({"topic": target, "stampHeaders": "true"})

    def run():
        stream = topics.stream(source).select("value")
        if way == "sink":
            writer = stream.writeStream.format("kafkalite").options(**options)
        else:
            writer = write_update(stream, options)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        await_end(query)
        return str(query.id)

    topics.fill(source, range(5), 0)
    topics.fill(source, range(5, 8), 1)
    query_id = run()
    topics.fill(source, ["last"], 1)
    assert run() == query_id
    forget_last_commit(checkpoint)
    run()
    counts = stamps_of(topics, target)
    assert {stamp[:2]: count for stamp, count in counts.items()} == {(query_id, "0"): 1, (query_id, "1"): 2}
    assert sum(counts.values()) == 8 + 2

import pickle

import pytest
from pyspark.sql.datasource import InputPartition

from spark_kafkalite.client.consume.range_fetcher import RangeNotInLog
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.errors import LogTruncated
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.offset_ranges import OffsetRange
from spark_kafkalite.spark.options import reader_options
from spark_kafkalite.spark.partition_reader import _after_loss, read_task
from spark_kafkalite.spark.read_plan import ReadPlan, ReadTask

T0 = TopicPartition("t", 0)
WHOLE = OffsetRange(T0, 10, 20)


def plan(fail: str = "false") -> ReadPlan:
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "failOnDataLoss": fail}
    return ReadPlan.of(reader_options(options), READ_SCHEMA)


@pytest.mark.parametrize(
    ("lost_at", "log", "resume", "skipped"),
    [
        (10, (15, 30), 15, 5),  # retention took the beginning
        (12, (15, 30), 15, 3),  # and did while the range was read
        (10, (20, 30), 20, 10),  # nothing of the range is left
        (10, (25, 30), 20, 10),
        (10, (0, 5), 20, 10),  # the log was made anew and ends before the range
        (10, (-1, -1), 20, 10),  # nobody knows
        (12, (5, 30), 12, 0),  # it is there again: read on
    ],
)
def test_where_reading_goes_on_after_lost_offsets(caplog, lost_at, log, resume, skipped):
    assert _after_loss(plan(), WHOLE, RangeNotInLog(T0, lost_at, *log)) == resume
    assert f"{skipped} offsets are skipped" in caplog.text
    assert "t-0[10, 20)" in caplog.text


def test_lost_offsets_are_an_error_by_default():
    with pytest.raises(SparkConditionError, match=r"KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE") as caught:
        _after_loss(plan("true"), WHOLE, RangeNotInLog(T0, 10, 15, 30))
    assert "offset 10 is not in the log, which holds [15, 30); 5 offsets are skipped" in str(caught.value)


def test_a_log_that_was_cut_while_it_was_read_names_both_offsets(caplog):
    cut = LogTruncated(T0, 15, 12, 3)
    assert _after_loss(plan(), WHOLE, cut) == 15
    assert "t-0[10, 20): the log was truncated to offset 12 while it was read up to offset 15" in caplog.text
    with pytest.raises(SparkConditionError, match=r"KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE.* 12 .* 15"):
        _after_loss(plan("true"), WHOLE, cut)


def test_no_ranges_connect_to_nothing():
    assert list(read_task(plan(), ReadTask(()))) == []
    assert list(read_task(plan(), InputPartition(None))) == []


def test_plan_and_task_are_pickled():
    task = pickle.loads(pickle.dumps(ReadTask((WHOLE,))))
    assert task.ranges == (WHOLE,)
    assert pickle.loads(pickle.dumps(plan())) == plan()

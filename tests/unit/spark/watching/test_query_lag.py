"""The age of what queries read next: what is asked for, what is remembered, and how it is shown."""

import pytest

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.watching.query_lag import QueryPartitionLag, RecordTimes, log_ends_of, timestamps_of
from spark_kafkalite.spark.watching.query_pages import as_json, as_prometheus

OPTIONS = reader_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t"})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
# It does not pass while tests run.
SOON = Deadline.after_ms(10**9)


class Log:
    """Tells times, as long as it is there."""

    def __init__(self) -> None:
        self.times: dict[TopicPartition, int] = {}
        self.asked: list[dict[TopicPartition, int]] = []
        self.now_s = 100.0

    def ask(self, options, offsets, deadline):
        self.asked.append(dict(offsets))
        return {tp: self.times[tp] for tp in offsets if tp in self.times}


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def times(log):
    return RecordTimes(log.ask, lambda: log.now_s)


def lag(partition: int, offset: int, end: int = 9, query: str = "q") -> QueryPartitionLag:
    return QueryPartitionLag(query, None, None, "t", partition, offset, end)


def test_a_time_is_asked_for_once_as_long_as_the_query_stands_there(times, log):
    log.times = {T0: 40_000, T1: 70_000}
    for _ in range(3):
        times.look_up([("q", OPTIONS, {T0: 5, T1: 6})], SOON)
    assert log.asked == [{T0: 5, T1: 6}]
    assert [times.aged(lag(0, 5), 60_000).seconds, times.aged(lag(1, 6), 60_000).seconds] == [20.0, 0]
    # It has moved on in one, by the time of the next question.
    assert times.aged(lag(0, 6), 60_000).seconds is None
    times.look_up([("q", OPTIONS, {T0: 6, T1: 6}), ("other", OPTIONS, {T0: 6})], SOON)
    assert log.asked[1:] == [{T0: 6}, {T0: 6}]
    assert times.aged(lag(0, 6, query="other"), 60_000).seconds == 20.0
    # What nobody asks for any more is forgotten.
    times.look_up([], SOON)
    assert times.aged(lag(1, 6), 60_000).seconds is None


def test_what_is_not_known_is_asked_for_again_after_a_while(times, log):
    log.times = {T0: -1}
    for wait_s in (0, 9, 1):
        log.now_s += wait_s
        times.look_up([("q", OPTIONS, {T0: 5, T1: 5})], SOON)
    assert len(log.asked) == 2
    assert times.aged(lag(0, 5), 60_000).seconds is None
    assert times.aged(lag(0, 9), 60_000).seconds == 0


def test_brokers_that_do_not_answer_leave_the_age_unknown():
    times = RecordTimes(timestamps_of)
    options = reader_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    times.look_up([("q", options, {T0: 5})], Deadline.after_ms(200))
    shown = times.aged(lag(0, 5), 60_000)
    assert shown.seconds is None
    assert '"lag_seconds": null' in as_json([shown])
    assert "kafkalite_query_lag_seconds{" not in as_prometheus([shown])
    assert 'partition="0"} 4\n' in as_prometheus([shown])


def test_brokers_that_do_not_answer_leave_the_ends_as_they_were():
    options = reader_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    assert log_ends_of(options, {T0: 5, T1: 7}, Deadline.after_ms(200)) == {T0: 5, T1: 7}

"""Durations by buckets, topics that clients name, sampled requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.broker.metrics.counters import Histogram, TopicMeters
from spark_kafkalite.broker.metrics.meters import RequestMeter
from spark_kafkalite.wire.api_keys import ApiKey


@given(st.floats(0, 3600))
def test_a_duration_is_below_its_bound_and_not_below_the_one_before(seconds: float) -> None:
    durations = Histogram()
    durations.observe(seconds)
    before_s = 0.0
    for bound_s, count in durations.buckets():
        if count:
            assert before_s - 1e-6 <= seconds <= bound_s + 1e-6
        before_s = bound_s
    assert sum(durations.counts) == 1 and durations.total_s == seconds


def test_topics_that_clients_invent_get_no_series() -> None:
    meters = TopicMeters()
    meters.of("orders").fetch_requests += 1
    for number in range(1000):
        meters.known(f"invented-{number}").fetch_requests += 1
    assert list(meters.by_name) == ["orders"]
    assert meters.total(lambda meter: meter.fetch_requests) == 1001


def test_a_fetched_topic_is_found_by_its_id_until_it_is_deleted() -> None:
    meters = TopicMeters()
    names = {b"id-1": "orders", b"id-2": "elsewhere"}
    meters.of("orders")
    meters.fetched(b"id-1", names.get).fetch_requests += 1
    assert meters.by_topic[b"id-1"] is meters.by_name["orders"]
    for unknown in (b"id-2", b"id-3", "elsewhere"):
        assert meters.fetched(unknown, names.get) is meters.rest
    assert list(meters.by_topic) == [b"id-1"]
    meters.forget(["orders"])
    assert meters.fetched(b"id-1", names.get) is meters.rest and not meters.by_topic


def test_sums_keep_what_deleted_topics_had() -> None:
    meters = TopicMeters()
    meters.of("orders").bytes_in += 7
    meters.forget(["orders", "never-was"])
    assert not meters.by_name and meters.total(lambda meter: meter.bytes_in) == 7


@pytest.mark.parametrize("key", list(ApiKey))
def test_one_request_in_sixteen_is_timed_and_all_are_counted(key: int) -> None:
    meter = RequestMeter()
    timed = [meter.next(key) is not None for _ in range(64)]
    assert sum(timed) == 4 and timed[0]
    assert meter.counts[key] == 64

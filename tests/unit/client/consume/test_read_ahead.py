"""Fetching ahead before a broker in the same process: starts, seeks, lost records, broken connections, bounds."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.consume.broker_fetcher import BrokerFetcher
from spark_kafkalite.client.consume.fetch_requests import FetchFrom, FetchLimits
from spark_kafkalite.client.consume.fetched import BufferPool, columns_from
from spark_kafkalite.client.consume.partition_state import TopicPartitionState
from spark_kafkalite.client.consume.range_fetcher import RangeFetcher, RangeNotInLog
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import (
    ClosedError,
    ConfigError,
    CorruptMessage,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
)
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tests.lab.batches import make_batch
from tests.lab.model_broker import NODE_ID, ModelBroker
from tests.patience import PATIENCE_S
from tests.seeds import SEED

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
CORRUPT, NOT_LEADER, NOT_ALLOWED = CorruptMessage.code, NotLeaderOrFollower.code, TopicAuthorizationFailed.code
FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5}


Make = Callable[..., ReadAhead]


@pytest.fixture
def broker() -> Iterator[ModelBroker]:
    made = ModelBroker({"t": 2})
    for tp in (T0, T1):
        for first in range(0, 100, 10):
            made.append(tp, make_batch([b"%d" % number for number in range(first, first + 10)]))
    yield made
    made.close()


@pytest.fixture
def cluster(broker: ModelBroker) -> Iterator[ClusterClient]:
    config = consumer_config({"bootstrap.servers": "model:1"}, FAST).client
    client = ClusterClient(config, SYSTEM_CLOCK, broker.open)
    client.refresh(["t"], Deadline.after_ms(10_000))
    yield client
    client.close()


@pytest.fixture
def make(cluster: ClusterClient) -> Iterator[Make]:
    made: list[ReadAhead] = []

    def read_ahead(fair: bool = False, **settings: Any) -> ReadAhead:
        given = {**FAST, "fetch_max_wait_ms": 50, "auto_offset_reset": "earliest", **settings}
        config = consumer_config({"bootstrap.servers": "model:1"}, given)
        made.append(ReadAhead(config, cluster, SYSTEM_CLOCK, fair=fair))
        return made[-1]

    yield read_ahead
    for each in made:
        each.close()


def failing(times: int, code: int, whole: bool = False) -> Callable[[int, Any], FetchResponse | None]:
    """Answer the first fetches with an error, for their first partition or as a whole."""
    left = [times]

    def answer(api_key: int, request: Any) -> FetchResponse | None:
        if api_key != ApiKey.FETCH or not left[0]:
            return None
        left[0] -= 1
        if whole:
            return FetchResponse(error_code=code)
        topic = request.topics[0]
        part = PartitionData(partition_index=topic.partitions[0].partition, error_code=code, high_watermark=-1)
        return FetchResponse(responses=[FetchableTopicResponse(topic=topic.topic, partitions=[part])])

    return answer


def take(ahead: ReadAhead, tp: TopicPartition = T0) -> list[int]:
    """Wait for a piece, or the error, of a partition; returns the numbers in the piece."""
    with ahead.lock:
        state = ahead.states[tp]
        assert ahead.changed.wait_for(lambda: state.buffered or state.error is not None, PATIENCE_S), state.fetch_offset
        if not state.buffered:
            assert state.error is not None
            raise state.error
        piece = state.buffered.popleft()
        state.buffered_bytes -= piece.size_bytes
        ahead.changed.notify_all()
    return [int(columns.value_at(row) or b"-1") for columns in columns_from([piece]) for row in range(columns.count)]


def take_until(ahead: ReadAhead, end: int, tp: TopicPartition = T0) -> list[int]:
    found: list[int] = []
    while not found or found[-1] < end - 1:
        found += take(ahead, tp)
    return found


def test_new_partitions_start_where_the_policy_says(make: Make) -> None:
    first, last = make(), make(auto_offset_reset="latest")
    for ahead, expected in ((first, 0), (last, 100)):
        ahead.assign([T0])
        assert ahead.wait_for_position(T0, Deadline.after_ms(20_000)) == expected


def test_without_a_policy_a_partition_waits_for_a_seek(make: Make) -> None:
    ahead = make(auto_offset_reset="none")
    ahead.assign([T0])
    with pytest.raises(OffsetOutOfRange, match=r"call seek\(\) first"):
        ahead.wait_for_position(T0, Deadline.after_ms(20_000))
    ahead.move([T0], 95, None)
    assert take(ahead) == [95, 96, 97, 98, 99]


def test_a_partition_that_is_not_assigned_moves_nothing(make: Make) -> None:
    ahead = make()
    ahead.assign([T0])
    ahead.move([T0], 40, None)
    for call in (lambda: ahead.move([T0, T1], 1, None), lambda: ahead.set_paused([T0, T1], True)):
        with pytest.raises(ConfigError, match="t-1 is not assigned"):
            call()
    assert take(ahead)[0] == 40


def test_everything_comes_once_and_in_order_however_small_the_fetches(make: Make) -> None:
    ahead = make(max_partition_fetch_bytes=1, queued_max_bytes=1_000)
    ahead.assign([T0, T1])
    for tp in (T0, T1):
        assert take_until(ahead, 100, tp) == list(range(100))


def test_what_waits_stays_within_its_bound(make: Make, broker: ModelBroker) -> None:
    size_bytes = len(make_batch(10))
    ahead = make(max_partition_fetch_bytes=1, queued_max_bytes=3 * size_bytes)
    ahead.assign([T0, T1])
    for _ in range(10):
        take(ahead), take(ahead, T1)
        with ahead.lock:
            assert sum(state.buffered_bytes for state in ahead.states.values()) <= 3 * size_bytes + size_bytes


def test_a_seek_drops_what_was_fetched_before(make: Make) -> None:
    ahead = make(max_partition_fetch_bytes=1)
    ahead.assign([T0])
    take(ahead)
    ahead.move([T0], 70, None)
    assert take(ahead) == list(range(70, 80))
    ahead.move(None, None, EARLIEST_TIMESTAMP)
    assert take(ahead) == list(range(10))
    ahead.move([T0], None, LATEST_TIMESTAMP)
    assert ahead.wait_for_position(T0, Deadline.after_ms(20_000)) == 100


@pytest.mark.parametrize("whole", [True, False])
def test_what_passes_is_tried_again(make: Make, broker: ModelBroker, whole: bool) -> None:
    broker.answer_first = failing(3, NOT_LEADER, whole)
    ahead = make()
    ahead.assign([T0])
    assert take_until(ahead, 100) == list(range(100))


@pytest.mark.parametrize(("code", "error"), [(NOT_ALLOWED, TopicAuthorizationFailed), (CORRUPT, CorruptMessage)])
def test_what_does_not_pass_is_the_partitions_error_until_a_seek(
    make: Make, broker: ModelBroker, code: int, error: type[Exception]
) -> None:
    # What may be damaged is fetched again five times.
    broker.answer_first = failing(6 if code == CORRUPT else 1, code)
    ahead = make()
    ahead.assign([T0])
    for _ in range(2):
        with pytest.raises(error, match="t-0"):
            take(ahead)
    ahead.move([T0], 50, None)
    assert take(ahead)[0] == 50


def test_what_is_on_its_way_behind_a_batch_that_cannot_be_read_is_dropped(make: Make, broker: ModelBroker) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def answer(api_key: int, request: Any) -> None:
        if api_key == ApiKey.FETCH and request.topics[0].partitions[0].fetch_offset > 0:
            is_asked.set()
            may_answer.wait(PATIENCE_S)

    broker.answer_first = answer
    ahead = make(max_partition_fetch_bytes=100)
    ahead.assign([T0])
    assert is_asked.wait(PATIENCE_S)
    with ahead.lock:
        ahead.states[T0].fail_at(5, CorruptMessage("t-0: damaged"))
        may_answer.set()
        assert ahead.changed.wait_for(lambda: not ahead._requested_bytes, PATIENCE_S)
    with pytest.raises(CorruptMessage, match="t-0: damaged"):
        take(ahead)
    # It goes on from where it is told to.
    ahead.move([T0], 7, None)
    assert take(ahead) == [7, 8, 9]


def test_a_partition_that_an_answer_leaves_out_is_asked_for_again(make: Make, broker: ModelBroker) -> None:
    left = [5]

    def answer(api_key: int, request: Any) -> FetchResponse | None:
        if api_key == ApiKey.FETCH and left[0]:
            left[0] -= 1
            return FetchResponse(responses=[])
        return None

    broker.answer_first = answer
    ahead = make()
    ahead.assign([T0])
    assert take(ahead)[0] == 0


def throttling(times: int, asked: list[int]) -> Callable[[int, Any], FetchResponse | None]:
    """Answer the first fetches empty, as to a client over its quota; ``asked`` gets the APIs of all requests."""

    def answer(api_key: int, request: Any) -> FetchResponse | None:
        asked.append(api_key)
        if api_key == ApiKey.FETCH and asked.count(ApiKey.FETCH) <= times:
            return FetchResponse(throttle_time_ms=5)
        return None

    return answer


def test_the_empty_answer_to_a_client_over_its_quota_is_no_fault(
    make: Make, broker: ModelBroker, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []
    broker.answer_first = throttling(5, asked)
    ahead = make()
    ahead.assign([T0])
    assert take_until(ahead, 100) == list(range(100))
    assert ApiKey.METADATA not in asked
    assert caplog.records == []


def test_a_range_waits_for_its_quota(cluster: ClusterClient, broker: ModelBroker) -> None:
    asked: list[int] = []
    broker.answer_first = throttling(5, asked)
    assert read(RangeFetcher(cluster, T0, 20, 30, max_bytes=1, timeout_ms=20_000)) == list(range(20, 30))
    assert ApiKey.METADATA not in asked


def test_records_that_were_deleted_are_passed_by_the_policy(make: Make, broker: ModelBroker) -> None:
    broker.delete_before(T0, 50)
    ahead = make()
    ahead.assign([T0])
    ahead.move([T0], 10, None)
    assert take_until(ahead, 100) == list(range(50, 100))
    strict = make(auto_offset_reset="none")
    strict.assign([T0])
    strict.move([T0], 10, None)
    with pytest.raises(OffsetOutOfRange, match="offset 10 is not in the log"):
        take(strict)


def test_a_log_that_lacks_its_own_earliest_offset_is_logged_once_and_asked_after_pauses(
    make: Make, broker: ModelBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_off = 0
    put_off_state = ReadAhead._put_off

    def count(ahead: ReadAhead, state: TopicPartitionState) -> None:
        nonlocal put_off
        put_off_state(ahead, state)
        put_off += 1
        ahead.changed.notify_all()

    monkeypatch.setattr(ReadAhead, "_put_off", count)
    # It is said to start behind its end.
    log = broker.partitions[T0]
    log.log_start_offset = 200
    ahead = make()
    ahead.assign([T0])
    with ahead.lock:
        assert ahead.changed.wait_for(lambda: put_off >= 5, PATIENCE_S)
    (line,) = lines_about_ranges(caplog)
    assert line == "t-0: offset 200 is not in the log: going to the earliest"
    with broker.lock:
        log.log_start_offset = 0
    assert take(ahead)[0] == 0
    # What happens after that is another one.
    ahead.move([T0], 999, None)
    assert take(ahead)[0] == 0
    assert lines_about_ranges(caplog)[1:] == ["t-0: offset 999 is not in the log: going to the earliest"]


def lines_about_ranges(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "is not in the log" in each.getMessage()]


def test_closing_ends_every_wait_and_thread(make: Make) -> None:
    ahead = make(auto_offset_reset="latest")
    ahead.assign([T0, T1])
    assert ahead.wait_for_position(T0, Deadline.after_ms(20_000)) == 100
    ahead.close()
    ahead.close()
    with pytest.raises(ClosedError):
        ahead.wait_for_position(T0, Deadline.after_ms(20_000))


def test_random_faults_and_seeks_lose_and_double_nothing(make: Make, broker: ModelBroker) -> None:
    source, faults = random.Random(SEED), random.Random(SEED + 1)

    def fail(api_key: int, request: Any) -> Any:
        if api_key in (ApiKey.FETCH, ApiKey.METADATA) and faults.random() < 0.15:
            raise ConnectionResetError
        return failing(1, NOT_LEADER)(api_key, request) if faults.random() < 0.15 else None

    broker.answer_first = fail
    ahead = make(max_partition_fetch_bytes=200, fetch_max_wait_ms=10)
    ahead.assign([T0, T1])
    expected = {T0: 0, T1: 0}
    for _ in range(120):
        tp = source.choice([T0, T1])
        if expected[tp] == 100 or source.random() < 0.2:
            expected[tp] = source.randrange(100)
            ahead.move([tp], expected[tp], None)
        found = take(ahead, tp)
        assert found == list(range(expected[tp], expected[tp] + len(found))), f"seed {SEED}"
        expected[tp] += len(found)


# Ranges, and what both share ------------------------------------------------------------------------------------------


def read(fetcher: RangeFetcher) -> list[int]:
    with fetcher:
        return [
            int(columns.value_at(row) or b"-1") for columns in columns_from(fetcher) for row in range(columns.count)
        ]


def test_a_range_survives_all_that_passes(cluster: ClusterClient, broker: ModelBroker) -> None:
    faults = random.Random(SEED)

    def fail(api_key: int, request: Any) -> Any:
        if api_key == ApiKey.FETCH and faults.random() < 0.2:
            raise ConnectionResetError
        return failing(1, NOT_LEADER, faults.random() < 0.5)(api_key, request) if faults.random() < 0.2 else None

    broker.answer_first = fail
    for _ in range(10):
        start, end = sorted(faults.sample(range(101), 2))
        found = read(RangeFetcher(cluster, T0, start, end, max_bytes=1, timeout_ms=20_000))
        assert found == list(range(start, end)), f"seed {SEED}"


def test_a_range_ends_at_what_does_not_pass(cluster: ClusterClient, broker: ModelBroker) -> None:
    for code, error in ((NOT_ALLOWED, TopicAuthorizationFailed), (CORRUPT, CorruptMessage)):
        broker.answer_first = failing(1, code)
        with pytest.raises(error, match="t-0"):
            read(RangeFetcher(cluster, T0, 0, 10))


def test_a_range_that_retention_took_meanwhile_names_the_log(cluster: ClusterClient, broker: ModelBroker) -> None:
    broker.delete_before(T0, 40)
    with pytest.raises(RangeNotInLog) as raised:
        read(RangeFetcher(cluster, T0, 20, 60))
    assert (raised.value.offset, raised.value.log_start_offset, raised.value.log_end_offset) == (20, 40, 100)


def test_the_largest_buffer_is_the_one_that_is_kept(cluster: ClusterClient, broker: ModelBroker) -> None:
    pool = BufferPool()
    fetcher = BrokerFetcher(cluster, pool)
    fetcher.connect(NODE_ID, Deadline.after_ms(10_000))
    sizes: list[int] = []
    for max_bytes in (1, 10_000, 1):
        position = FetchFrom(T0, 0, -1, max_bytes)
        limits = FetchLimits(1, 1 << 20, 10, IsolationLevel.READ_UNCOMMITTED)
        with fetcher.fetch([position], limits, Deadline.after_ms(10_000)) as answer:
            piece = answer.piece(position, answer.of(position))
        piece.release()
        kept = pool.take()
        assert kept is not None
        sizes.append(len(kept))
        pool.give(kept)
    assert sizes[0] < sizes[1] == sizes[2]
    fetcher.close()
    with pytest.raises(ClosedError):
        fetcher.connect(NODE_ID, Deadline.after_ms(10_000))

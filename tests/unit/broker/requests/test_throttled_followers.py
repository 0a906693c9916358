"""What followers that are not in sync get while the leader's throttle holds them (KIP-73)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.wire import packed
from tests.lab.batches import values_of
from tests.lab.partition_states import partition_state
from tests.patience import wait_until_async
from tests.unit.broker.replication.test_partition import Harness
from tests.unit.broker.requests.test_fetching import (
    FOLLOWER,
    ME,
    TOPIC_ID,
    WAIT_MS,
    Bed,
    Connection,
    follower,
    going_on,
)

LISTED = "0:1"


@pytest.fixture
def harness() -> Iterator[Harness]:
    loop = asyncio.new_event_loop()
    yield Harness(loop)
    loop.close()


class ThrottledBed(Bed):
    """Two partitions with this broker alone in sync; the first one is throttled."""

    def __init__(self, harness: Harness, rate: int) -> None:
        super().__init__(harness)
        self.now_s = 100.0
        self.throttle = ReplicationThrottle(lambda: self.now_s)
        self.throttle.obey(rate)
        harness.services.leader_throttle = self.throttle
        self.first = self.lead(leader_replication_throttled_replicas=LISTED)
        self.second = self.lead(1, leader_replication_throttled_replicas=LISTED)
        self.connection = Connection(self, FOLLOWER)

    def open(self, max_wait_ms: int = 0) -> packed.FetchRequest:
        """Return the request that opens a session for both partitions."""
        asked = [packed.FetchPartition(number, 0, 1 << 20, 4) for number in (0, 1)]
        return follower(packed.FetchRequest([(TOPIC_ID, asked)], max_wait_ms, session_epoch=0))


def named(number: int, offset: int) -> list[tuple[Any, list[packed.FetchPartition]]]:
    return [(TOPIC_ID, [packed.FetchPartition(number, offset, 1 << 20, 4, 4)])]


def counts(answer: packed.FetchResponse) -> dict[int, int]:
    return {
        one.partition: len(values_of(one.records)) if one.records else 0
        for _, partitions in answer.topics
        for one in partitions
    }


def test_a_throttled_partition_waits_and_the_others_go_on(harness: Harness) -> None:
    bed = ThrottledBed(harness, 10)
    for _ in range(3):
        harness.append(bed.first, 2)
    first = bed.open()
    answer = bed.connection.fetch(first)
    # The first batch comes whole, however low the rate is.
    assert counts(answer) == {0: 2, 1: 0}
    copied = bed.throttle.total_bytes
    assert copied > 10 and bed.throttle.owed_s() > 0
    harness.append(bed.second, 4)
    answer = bed.connection.fetch(going_on(first, answer, 1, topics=named(0, 2)))
    assert counts(answer) == {1: 4}
    # It need not be named again.
    bed.now_s += 12
    answer = bed.connection.fetch(going_on(first, answer, 2, topics=named(1, 4)))
    assert counts(answer) == {0: 2}
    # What is not throttled is not counted: a follower that has all joins.
    assert bed.throttle.total_bytes == copied * 2


def test_a_fetch_reads_no_more_than_the_rate_allows_at_once(harness: Harness) -> None:
    bed = ThrottledBed(harness, 1000)
    for _ in range(100):
        harness.append(bed.first, 1)
    answer = bed.connection.fetch(bed.open())
    assert 0 < bed.throttle.total_bytes <= 1001
    assert 0 < counts(answer)[0] < 100


def test_no_news_of_a_held_partition_has_the_others_read_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = ThrottledBed(harness, 10)
    harness.append(bed.first, 3)
    harness.append(bed.first, 3)
    first = bed.open(WAIT_MS)
    answer = bed.connection.fetch(first)
    reads: list[int] = []
    throttle_of = Leader.throttle_of

    def counted(leader: Leader, replica_id: int) -> Any:
        reads.append(leader.topic_partition.partition)
        return throttle_of(leader, replica_id)

    bed.connection.send(going_on(first, answer, 1, topics=named(0, 3)))
    assert bed.connection.receive_all() == []
    monkeypatch.setattr(Leader, "throttle_of", counted)
    for _ in range(5):
        harness.append(bed.first, 1)
        assert bed.connection.receive_all() == []
    assert set(reads) == {0} and len(reads) <= 2 * 5
    harness.append(bed.second, 1)
    # The first one's high watermark has moved.
    assert counts(bed.connection.receive()) == {0: 0, 1: 1}


@pytest.mark.parametrize("isr", [(ME, FOLLOWER), (ME,)])
def test_who_is_in_sync_is_neither_held_nor_counted(harness: Harness, isr: tuple[int, ...]) -> None:
    bed = ThrottledBed(harness, 10)
    bed.throttle.charge(1000)
    harness.append(bed.first, 3)
    first = bed.open(WAIT_MS)
    bed.connection.send(first)
    assert bed.connection.receive_all() == []
    # The registry has it in the ISR, perhaps, while its fetch is held.
    bed.first.become_leader(partition_state(*isr, epoch=4, version=2))
    answers = bed.connection.receive_all()
    assert [counts(each) for each in answers] == ([{0: 3, 1: 0}] if FOLLOWER in isr else [])
    assert bed.throttle.total_bytes == 1000


def test_a_list_that_is_taken_back_releases_what_it_held(harness: Harness) -> None:
    bed = ThrottledBed(harness, 10)
    bed.throttle.charge(1000)
    harness.append(bed.first, 3)
    bed.connection.send(bed.open(WAIT_MS))
    assert bed.connection.receive_all() == []
    bed.first.apply_config(TopicConfig.from_properties({"leader.replication.throttled.replicas": "*"}))
    assert bed.connection.receive_all() == []
    bed.first.apply_config(TopicConfig.from_properties({}))
    assert counts(bed.connection.receive()) == {0: 3, 1: 0}


def test_a_held_fetch_is_answered_as_soon_as_nothing_is_owed(harness: Harness) -> None:
    bed = ThrottledBed(harness, 10)
    bed.throttle = harness.services.leader_throttle = ReplicationThrottle(harness.loop.time)
    bed.throttle.obey(100_000)
    bed.throttle.charge(101_000)
    harness.append(bed.first, 3)
    bed.connection.send(bed.open(WAIT_MS))

    async def answered() -> None:
        await wait_until_async(lambda: bool(bed.connection.answers), "the answer")

    # The fetch itself waits a minute.
    harness.loop.run_until_complete(answered())
    assert counts(bed.connection.receive()) == {0: 3, 1: 0}


def test_a_follower_that_ends_before_the_log_start_hears_of_that_at_once(harness: Harness) -> None:
    bed = ThrottledBed(harness, 10)
    bed.throttle.charge(1000)
    harness.append(bed.first, 3)
    bed.first.log.advance_log_start(2)
    ((_, (one, _)),) = bed.connection.fetch(bed.open()).topics
    assert (one.error_code, one.log_start_offset) == (1, 2)

"""What a leader does under one epoch: whom it wakes, what it commits, and that nobody waits beyond the epoch."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.replication import next_leader
from spark_kafkalite.broker.replication.append_queue import QueuedBatch
from spark_kafkalite.broker.replication.bounds import Bounds
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.reader import Reader
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests.fetch_reading import Fetching, Reading
from spark_kafkalite.broker.requests.handlers.fetch import DelayedFetch
from spark_kafkalite.broker.requests.handlers.produce import DelayedProduce
from spark_kafkalite.broker.requests.leader_hints import LeaderHints
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.errors import NotLeaderOrFollower, OffsetOutOfRange
from spark_kafkalite.log.partition_log import AppendResult
from spark_kafkalite.model import UNKNOWN_INCARNATION, Incarnation
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.slices import Slices
from spark_kafkalite.wire.packed import FetchPartition, FetchRequest
from tests.lab.batches import values_of
from tests.lab.partition_states import live_broker, partition_state
from tests.unit.broker.replication.test_partition import LARGE, TP, Harness, Waiter
from tests.unit.slice_clock import SliceClock

FOLLOWER = 2
INCARNATION = Incarnation(20)


def of_two(*isr: int, epoch: int = 4, version: int = 2) -> PartitionState:
    return partition_state(*isr, replicas=(1, FOLLOWER), epoch=epoch, version=version)


@pytest.fixture
def harness() -> Iterator[Harness]:
    loop = asyncio.new_event_loop()
    yield Harness(loop)
    loop.close()


@pytest.fixture
def partition(harness: Harness) -> Partition:
    """Led by this broker, with a follower in sync that has nothing yet."""
    harness.services.live_brokers = lambda: {1: live_broker(1), FOLLOWER: live_broker(FOLLOWER)}
    partition = harness.partition(lead=False)
    partition.become_leader(of_two(1, FOLLOWER, epoch=4, version=1))
    return partition


def test_followers_read_to_the_log_end_and_consumers_what_is_committed(harness: Harness, partition: Partition) -> None:
    leader = partition.check_leader(4)
    harness.append(partition, 3)
    assert (leader.end_offset_for(Reader.UNCOMMITTED), leader.end_offset_for(Reader.FOLLOWER)) == (0, 3)
    assert leader.read(0, 1000, at_least_one=True) is None
    found = leader.read(0, 1000, at_least_one=True, reader=Reader.FOLLOWER)
    assert found is not None
    assert len(values_of(found.read())) == 3
    assert leader.read(3, 1000, at_least_one=True, reader=Reader.FOLLOWER) is None
    with pytest.raises(OffsetOutOfRange):
        leader.read(4, 1000, at_least_one=True, reader=Reader.FOLLOWER)
    with pytest.raises(OffsetOutOfRange, match="offset 4 is beyond the log end offset 3"):
        leader.follower_fetched(FOLLOWER, INCARNATION, 4)
    for stranger in (1, 3):
        with pytest.raises(NotLeaderOrFollower, match=f"broker {stranger} is not a follower of t-0"):
            leader.follower_fetched(stranger, INCARNATION, 0)
    leader.follower_fetched(FOLLOWER, UNKNOWN_INCARNATION, 3)
    assert partition.high_watermark == 0


def test_the_low_watermark_waits_for_those_in_sync(harness: Harness, partition: Partition) -> None:
    leader = partition.check_leader()
    told: list[int] = []
    harness.services.on_follower_log_start = lambda: told.append(leader.follower_logs.low_watermark)
    harness.append(partition, 3)
    leader.follower_fetched(FOLLOWER, INCARNATION, 3, None, 0)
    partition.log.advance_log_start(2)
    assert leader.follower_logs.low_watermark == 0
    # Its log has moved, too; saying the same again, or nothing, is no news.
    for start in (1, 2, 2, -1):
        leader.follower_fetched(FOLLOWER, INCARNATION, 3, None, start)
    assert told == [0, 1, 2]
    assert leader.follower_logs.low_watermark == 2
    # Nobody waits for who is not in sync.
    partition.log.advance_log_start(3)
    assert leader.follower_logs.low_watermark == 2
    partition.become_leader(of_two(1, epoch=5))
    assert partition.check_leader().follower_logs.low_watermark == 3


def test_a_log_start_is_confirmed_by_an_in_sync_replica_that_has_it_or_by_none_to_ask(
    harness: Harness, partition: Partition
) -> None:
    leader = partition.check_leader()
    harness.append(partition, 3)
    assert not leader.follower_logs.confirms_start(2), "nobody has said anything"
    confirmed = []
    for start in (-1, 0, 1, 2, 3):
        leader.follower_fetched(FOLLOWER, INCARNATION, 3, None, start)
        confirmed.append(leader.follower_logs.confirms_start(2))
    # A follower that starts later may be wrong in its own way.
    assert confirmed == [False, False, False, True, False]
    # A replica out of sync confirms nothing, and may have the records still.
    leader.follower_fetched(FOLLOWER, INCARNATION, 3, None, 3)
    partition.become_leader(partition_state(1, replicas=(1, FOLLOWER), epoch=5, version=2))
    leader = partition.check_leader()
    leader.follower_fetched(FOLLOWER, INCARNATION, 1, None, 2)
    assert not leader.follower_logs.confirms_start(2)
    partition.become_leader(partition_state(1, replicas=(1,), epoch=6, version=3))
    assert partition.check_leader().follower_logs.confirms_start(2)


def test_what_a_follower_refuses_is_checked_with_the_next_read(harness: Harness, partition: Partition) -> None:
    leader = partition.check_leader()
    for _ in range(3):
        harness.append(partition, 1)
    log = partition.log
    leader.follower_fetched(FOLLOWER, INCARNATION, 1)
    leader.refused_by(FOLLOWER)
    log.local.known_damage.check(0, 3, 3)
    assert not log.is_damaged, "its bytes are sound here"
    file = log.segments.active.file
    size_bytes = file.size() // 3
    last = file.pread(1, 2 * size_bytes - 1)
    file.pwrite(bytes([last[0] ^ 1]), 2 * size_bytes - 1)
    leader.refused_by(FOLLOWER)
    log.local.known_damage.check(0, 3, 3)
    assert not log.is_damaged, "one look for each offset"
    leader.follower_fetched(FOLLOWER, INCARNATION, 0)
    leader.refused_by(FOLLOWER)
    log.local.known_damage.check(0, 3, 3)
    assert log.damaged_ranges == ((1, 2),)


def test_what_consumers_ask_for_again_and_again_is_checked(harness: Harness, partition: Partition) -> None:
    leader, damage = partition.check_leader(), partition.log.local.known_damage
    for _ in range(3):
        harness.append(partition, 1)
    file = partition.log.segments.active.file
    size_bytes = file.size() // 3
    last = file.pread(1, 2 * size_bytes - 1)
    file.pwrite(bytes([last[0] ^ 1]), 2 * size_bytes - 1)
    for _ in range(2):
        leader.given_again(0)
        assert damage.is_quiet
    leader.given_again(0)
    damage.check(0, 3, 3)
    assert partition.log.damaged_ranges == ((1, 2),)


def test_what_is_lacking_here_is_accepted_only_when_each_follower_has_reported_to_lack_it(
    harness: Harness, partition: Partition
) -> None:
    leader = partition.check_leader()
    harness.append(partition, 4)
    partition.log.local.known_damage.add(1, 3)
    assert leader.follower_logs.lacked_by_all() == (), "nobody has said anything"
    leader.follower_fetched(FOLLOWER, INCARNATION, 4)
    assert leader.follower_logs.lacked_by_all() == (), "it has all"
    leader.follower_damage(FOLLOWER, INCARNATION, 1, ((2, 3),))
    assert leader.follower_logs.lacked_by_all() == (), "where its log ends now is not known, and it has offset 1"
    for offset in (4, 2):
        leader.follower_fetched(FOLLOWER, INCARNATION, offset, None, 0, 1)
        assert leader.follower_logs.lacked_by_all() == ((2, 3),), "it has offset 1"
    leader.follower_fetched(FOLLOWER, INCARNATION, 1, None, 0, 1)
    assert leader.follower_logs.lacked_by_all() == ((1, 3),)
    leader.follower_damage(FOLLOWER, INCARNATION, 2, ((1, 3),))
    leader.follower_fetched(FOLLOWER, INCARNATION, 4, None, 0, 2)
    assert leader.follower_logs.lacked_by_all() == ((1, 3),)


def test_each_side_is_woken_by_its_own_bound(harness: Harness, partition: Partition) -> None:
    leader = partition.check_leader()
    consumer, follower, producer = Waiter(), Waiter(), Waiter()
    leader.waiters_with(Reader.UNCOMMITTED).add(consumer)
    leader.waiters_with(Reader.FOLLOWER).add(follower)
    leader.ack_waiters.add(producer)
    harness.append(partition, 3)
    harness.run_loop()
    assert (consumer.checks, follower.checks, producer.checks) == (0, 1, 0)
    leader.follower_fetched(FOLLOWER, INCARNATION, 2)
    harness.run_loop()
    assert (consumer.checks, follower.checks, producer.checks) == (1, 1, 1)
    assert (partition.high_watermark, partition.acknowledged_end_offset(-1)) == (2, 2)
    # No news: the same again, and less, as a follower says that has cut its log.
    leader.follower_fetched(FOLLOWER, INCARNATION, 2)
    leader.follower_fetched(FOLLOWER, INCARNATION, 1)
    harness.run_loop()
    assert (consumer.checks, producer.checks, partition.high_watermark) == (1, 1, 2)


def test_a_reader_of_committed_transactions_waits_for_the_last_stable_offset(
    harness: Harness, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    stable = 1
    monkeypatch.setattr(Bounds, "stable_end_offset", lambda bounds, _: min(stable, bounds.high_watermark))
    leader = partition.check_leader()
    uncommitted, committed = Waiter(), Waiter()
    leader.waiters_with(Reader.UNCOMMITTED).add(uncommitted)
    leader.waiters_with(Reader.COMMITTED).add(committed)
    for _ in range(3):
        harness.append(partition, 1)
    leader.follower_fetched(FOLLOWER, INCARNATION, 2)
    harness.run_loop()
    assert (leader.end_offset_for(Reader.UNCOMMITTED), leader.end_offset_for(Reader.COMMITTED)) == (2, 1)
    assert (uncommitted.checks, committed.checks) == (1, 1)
    # More is committed behind an open transaction.
    leader.follower_fetched(FOLLOWER, INCARNATION, 3)
    harness.run_loop()
    assert (uncommitted.checks, committed.checks) == (2, 1)
    found = leader.read(0, 10_000, at_least_one=True, reader=Reader.COMMITTED)
    assert found is not None
    assert len(values_of(found.read())) == 1
    assert leader.read(1, 10_000, at_least_one=True, reader=Reader.COMMITTED) is None
    leader.end(NotLeaderOrFollower("over"))
    harness.run_loop()
    assert (uncommitted.checks, committed.checks) == (3, 2)


def test_what_followers_have_after_it_was_flushed_is_shown_at_once(harness: Harness) -> None:
    harness.services.live_brokers = lambda: {1: live_broker(1), FOLLOWER: live_broker(FOLLOWER)}
    partition = harness.partition(lead=False, visibility_policy="flushed", flush_messages=2)
    partition.become_leader(of_two(1, FOLLOWER, epoch=4, version=1))
    leader, consumer = partition.check_leader(), Waiter()
    leader.waiters_with(Reader.UNCOMMITTED).add(consumer)
    harness.append(partition, 2)
    harness.run_loop()
    harness.io.run_one()
    harness.run_loop()
    checks = consumer.checks
    assert (partition.log.recovery_point, partition.visible_end_offset) == (2, 0)
    leader.follower_fetched(FOLLOWER, INCARNATION, 2)
    harness.run_loop()
    assert (partition.visible_end_offset, consumer.checks) == (2, checks + 1)
    # What is not flushed yet is not shown, and nobody looks for it.
    harness.append(partition, 1)
    leader.follower_fetched(FOLLOWER, INCARNATION, 3)
    harness.run_loop()
    assert (partition.high_watermark, partition.visible_end_offset, consumer.checks) == (3, 2, checks + 1)


class Watcher:
    """A partition of a fetch session, as a leader sees it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def news(self) -> None:
        self.told.append("news")

    def changed(self) -> None:
        self.told.append("changed")

    def let_go(self) -> None:
        self.told.append("let go")


def test_watchers_are_told_at_once_of_what_an_answer_tells_of(harness: Harness, partition: Partition) -> None:
    leader = partition.check_leader()
    consumer, follower = Watcher(), Watcher()
    leader.consumers.watchers[consumer] = None
    leader.followers.watchers[follower] = None
    harness.append(partition, 3)
    assert (consumer.told, follower.told) == ([], ["news"])
    leader.follower_fetched(FOLLOWER, INCARNATION, 2)
    assert (consumer.told, follower.told) == (["news"], ["news", "changed"])
    partition.log.advance_log_start(1)
    assert (consumer.told, follower.told) == (["news", "changed"], ["news", "changed", "news"])
    partition.resign(2, 5, 2)
    assert (consumer.told[2:], follower.told[3:]) == (["news", "let go"], ["news", "let go"])
    partition.log.advance_log_start(2)
    partition.close()
    partition.log.advance_log_start(3)
    assert (len(consumer.told), len(follower.told), partition.log.on_start_moved) == (4, 5, [])


def test_a_follower_that_leaves_the_isr_holds_nobody_up(harness: Harness, partition: Partition) -> None:
    harness.append(partition, 3)
    waiter = Waiter()
    partition.check_leader().ack_waiters.add(waiter)
    partition.become_leader(of_two(1))
    harness.run_loop()
    assert (partition.high_watermark, waiter.checks) == (3, 1)


def test_what_a_follower_had_under_another_epoch_says_nothing(harness: Harness, partition: Partition) -> None:
    harness.append(partition, 3)
    partition.check_leader().follower_fetched(FOLLOWER, INCARNATION, 2)
    partition.become_leader(of_two(1, FOLLOWER, epoch=5))
    harness.append(partition, 3)
    assert (partition.high_watermark, partition.log.log_end_offset) == (2, 6)
    partition.check_leader().follower_fetched(FOLLOWER, INCARNATION, 6)
    assert partition.high_watermark == 6


END = [
    lambda partition: partition.resign(2, 5, 2),
    lambda partition: partition.resign(-1, 5, 2),
    # It leads again before anybody has looked.
    lambda partition: (
        partition.resign(2, 5, 2),
        partition.become_leader(of_two(1, epoch=6, version=3)),
    ),
    lambda partition: partition.become_leader(of_two(1, epoch=5)),
    lambda partition: partition.fence("for a test"),
    lambda partition: (
        partition.fence("for a test"),
        partition.become_leader(of_two(1)),
    ),
    lambda partition: partition.close(),
    lambda partition: partition.go_offline(OSError("bad disk")),
]


@pytest.mark.parametrize("end", END)
def test_whoever_waits_is_answered_when_the_epoch_ends(harness: Harness, partition: Partition, end: Any) -> None:
    leader = partition.check_leader()
    waiters = [Waiter() for _ in range(3)]
    for waiting, waiter in zip((leader.consumers, leader.followers, leader.ack_waiters), waiters, strict=True):
        waiting.add(waiter)
    queued: list[Any] = []
    batch = harness.batch(values=LARGE, codec="gzip")
    header = leader.try_append(batch, 9)
    assert not isinstance(header, AppendResult)
    leader.append_later(QueuedBatch(batch, 9, header, queued.append, lambda: None))
    end(partition)
    harness.run_loop()
    assert [waiter.checks for waiter in waiters] == [1, 1, 1]
    code = 56 if partition.storage_error is not None else 6
    assert (leader.end_reason and leader.end_reason.code, queued and queued[0].code) == (code, code)
    harness.io.run_one()
    assert (len(queued), partition.log.log_end_offset) == (1, 0)
    # Whoever comes later is answered at once.
    leader.append_later(QueuedBatch(batch, 9, header, queued.append, lambda: None))
    assert [error.code for error in queued] == [code, code]


@pytest.mark.parametrize("is_sound", [True, False])
def test_the_first_record_of_a_log_waits_for_a_thread_and_the_next_ones_behind_it(
    harness: Harness, is_sound: bool
) -> None:
    partition = harness.partition(is_new=True)
    leader = partition.check_leader()
    batches = [harness.batch(), harness.batch(2)]
    outcomes: list[Any] = []
    header = leader.try_append(batches[0], 9)
    assert not isinstance(header, AppendResult)
    leader.append_later(QueuedBatch(batches[0], 9, header, outcomes.append, lambda: None))
    leader.append_later(QueuedBatch(batches[1], 9, None, outcomes.append, lambda: None))
    assert (outcomes, partition.log.log_end_offset) == ([], 0)
    if not is_sound:
        harness.fs.fail("sync", errno.EIO, path_part="partition.metadata")
    harness.io.run_one()
    if is_sound:
        assert outcomes == [AppendResult(0, 0, -1, False), AppendResult(1, 2, -1, False)]
        assert isinstance(leader.try_append(harness.batch(), 9), AppendResult)
    else:
        assert [error.code for error in outcomes] == [56, 56]
        assert (len(harness.failures), partition.log.log_end_offset) == (1, 0)


class Answers:
    """An exchange whose answer is kept."""

    def __init__(self) -> None:
        self.api_key, self.api_version, self.correlation_id = 1, 8, 1
        self.answers: list[object] = []
        self.connection = None
        self.session: Any = SimpleNamespace(rights=None)
        self.has_limits = False
        self.quota = None

    def resume(self) -> bool:
        return False

    def counted(self, work: Any) -> Any:
        return work

    def may(self, *_: object) -> bool:
        return True

    def defer(self) -> None:
        pass

    def call_if_abandoned(self, callback: object) -> None:
        pass

    def throttle_time_ms(self, response_bytes: int = 0) -> int:
        return 0

    def answer(self, response: object) -> None:
        self.answers.append(response)


def context_of(harness: Harness, partition: Partition) -> Any:
    replicas = SimpleNamespace(get=lambda key: partition)
    return SimpleNamespace(
        meters=None,
        loop=harness.loop,
        clock=harness.clock,
        purgatory=Purgatory(harness.loop),
        slices=Slices(harness.loop, SliceClock()),
        replicas=replicas,
        config={"fetch.max.bytes": 1 << 20},
        lease=RegistryLease(unlimited=True),
    )


@pytest.mark.parametrize("end", END)
def test_a_produce_that_waits_is_refused_when_its_epoch_ends(
    harness: Harness, partition: Partition, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    """Also when what it has appended is below the high watermark by then: it is the next leader's (rule R15)."""
    # How it waits for that one is test_next_leader.py's.
    monkeypatch.setattr(next_leader, "_AWAITED_S", 0.0)
    produced: list[Any] = []
    exchange: Any = Answers()
    context = context_of(harness, partition)
    waiting = DelayedProduce(context, exchange, -1, [("t", produced)], LeaderHints(context, exchange))
    waiting.await_acknowledgement(partition.check_leader(), harness.append(partition), produced)
    waiting.start(30_000)
    harness.run_loop()
    assert not waiting.finished
    end(partition)
    partition.bounds.commit(1)
    harness.run_loop()
    assert waiting.finished and len(exchange.answers) == 1
    assert [one.error_code for one in produced] == [56 if partition.storage_error is not None else 6]


def test_a_produce_is_told_when_too_few_are_in_sync_by_the_time_it_is_acknowledged(harness: Harness) -> None:
    harness.services.live_brokers = lambda: {1: live_broker(1), FOLLOWER: live_broker(FOLLOWER)}
    partition = harness.partition(lead=False, min_insync_replicas=2)
    partition.become_leader(of_two(1, FOLLOWER, version=1))
    produced: list[Any] = []
    exchange: Any = Answers()
    context = context_of(harness, partition)
    waiting = DelayedProduce(context, exchange, -1, [("t", produced)], LeaderHints(context, exchange))
    waiting.await_acknowledgement(partition.check_leader(), harness.append(partition), produced)
    waiting.start(30_000)
    # Both in one pass of the loop.
    partition.check_leader().follower_fetched(FOLLOWER, INCARNATION, 1)
    partition.become_leader(of_two(1))
    harness.run_loop()
    assert (waiting.finished, [one.error_code for one in produced]) == (True, [20])


@pytest.mark.parametrize("end", END)
def test_a_fetch_that_waits_is_answered_when_its_epoch_ends(harness: Harness, partition: Partition, end: Any) -> None:
    context = context_of(harness, partition)
    fetch = FetchRequest([(TP.topic, [FetchPartition(0, 0, 1000)])], 30_000, 1 << 20)
    exchange: Any = Answers()
    fetching = Fetching(context, exchange, fetch)
    first = Reading(fetching)
    first.read()
    waiting = DelayedFetch(fetching)
    waiting.start(first)
    harness.run_loop()
    assert not waiting.finished
    end(partition)
    harness.run_loop()
    assert waiting.finished and len(exchange.answers) == 1

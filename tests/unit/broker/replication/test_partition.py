"""A partition over a real log in memory; "threads" run when the test says so."""

from __future__ import annotations

import asyncio
import errno
import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_kafkalite.broker.replication.append_queue import AppendOutcome, AppendQueue, QueuedBatch
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.replication.rules.following import StopFollowing
from spark_kafkalite.broker.waiting.purgatory import DelayedOperation, Purgatory
from spark_kafkalite.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.files.small_files import write_damaged_ranges
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import AppendResult, PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import BatchHeader
from spark_kafkalite.registry.accepted_damage import AcceptedDamage
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from spark_kafkalite.wire.packed import FetchedPartition
from tests.lab.batches import make_batch, make_stored_batch, values_of
from tests.lab.manual_loop import ManualThreads
from tests.lab.partition_states import live_broker, partition_state
from tests.seeds import SEED

TP = TopicPartition("t", 0)
# More than the loop writes at once.
HUGE = [bytes([number]) * 1_500_000 for number in range(3)]
LARGE = [b"%06d" % number * 100 for number in range(3000)]


class Waiter(DelayedOperation):
    def __init__(self) -> None:
        super().__init__()
        self.checks = 0

    def try_complete(self) -> bool:
        self.checks += 1
        return False


class Harness:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.fs = MemoryFs()
        self.clock = ManualClock()
        self.io = ManualThreads()
        # Of batches that are queued, those whose memory has been let go of.
        self.released: list[memoryview] = []
        self.failures: list[BaseException] = []
        services = PartitionServices(
            1,
            self.clock,
            self.io,  # type: ignore[arg-type]
            Purgatory(loop),
            1 << 26,
            on_storage_failure=self._storage_failed,
        )
        self.services = services

    def _storage_failed(self, partition: Partition, error: BaseException) -> None:
        self.failures.append(error)
        partition.go_offline(error)

    def partition(
        self,
        number: int = 0,
        *,
        lead: bool = True,
        isr: tuple[int, ...] = (1,),
        is_new: bool = False,
        **settings: object,
    ) -> Partition:
        """``is_new``: the log has never been appended to, so its identity is yet to be synced."""
        config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
        self.fs.make_directories("/logs")
        self.fs.sync_directory("/")
        host = LogHost.alone(OpenFiles(self.fs), "/logs", self.clock)
        key = TP._replace(partition=number)
        log = PartitionLog.create(host, f"/logs/t-{number}", key, b"i" * 16, config)
        if not is_new:
            log.readiness.prepare()
        partition = Partition(key, b"i" * 16, log, self.services)
        if lead:
            partition.become_leader(partition_state(*isr, replicas=(1,), epoch=0, version=0))
        return partition

    def batch(self, count: int = 1, **options: Any) -> memoryview:
        values = options.pop("values", count)
        return memoryview(make_batch(values, timestamp_ms=self.clock.wall_ms(), **options))

    def append(self, partition: Partition, count: int = 1, **options: Any) -> AppendResult:
        partition.log.readiness.prepare()
        result = partition.check_leader().try_append(self.batch(count, **options), 9)
        assert isinstance(result, AppendResult)
        return result

    def run_loop(self) -> None:
        """Run what call_soon has; an asyncio loop runs what is ready in one pass."""
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def harness() -> Iterator[Harness]:
    loop = asyncio.new_event_loop()
    yield Harness(loop)
    loop.close()


def test_a_leader_commits_what_it_appends(harness: Harness) -> None:
    partition = harness.partition()
    assert harness.append(partition, 3) == AppendResult(0, 2, -1, False)
    assert (partition.high_watermark, partition.visible_end_offset, partition.acknowledged_end_offset(-1)) == (3, 3, 3)
    found = partition.check_leader().read(1, 1 << 20, at_least_one=True)
    assert found is not None
    assert partition.log.local.place_of(found) == (True, True)


def test_reads_between_the_visible_end_and_the_log_end_give_nothing(harness: Harness) -> None:
    partition = harness.partition(visibility_policy="flushed")
    harness.append(partition, 3)
    assert partition.check_leader().read(0, 1000, at_least_one=True) is None
    assert partition.check_leader().read(3, 1000, at_least_one=True) is None
    for offset in (4, -1):
        with pytest.raises(OffsetOutOfRange):
            partition.check_leader().read(offset, 1000, at_least_one=True)


def test_roles_and_epochs(harness: Harness) -> None:
    partition = harness.partition(lead=False)
    with pytest.raises(NotLeaderOrFollower):
        partition.check_leader().try_append(harness.batch(), 9)
    partition.become_leader(partition_state(1, replicas=(1,), epoch=5, version=3))
    partition.check_leader(5)
    with pytest.raises(FencedLeaderEpoch):
        partition.check_leader(4)
    with pytest.raises(UnknownLeaderEpoch):
        partition.check_leader(6)
    # A state that is not newer changes nothing (rule R2).
    partition.resign(2, 6, 3)
    assert partition.is_leader
    partition.resign(2, 6, 4)
    assert (partition.is_leader, partition.leader_epoch) == (False, 6)
    partition.become_leader(partition_state(1, replicas=(1,), epoch=4, version=2))
    assert not partition.is_leader


def test_too_few_in_sync_replicas_refuse_acks_all_and_hold_the_high_watermark(harness: Harness) -> None:
    partition = harness.partition(lead=False, min_insync_replicas=2)
    partition.become_leader(partition_state(1, replicas=(1, 2), epoch=0, version=0))
    with pytest.raises(NotEnoughReplicas):
        partition.check_leader().check_acks(-1)
    partition.check_leader().check_acks(1)
    harness.append(partition)
    assert (partition.high_watermark, partition.acknowledged_end_offset(1)) == (0, 1)


def test_waiting_fetches_are_woken_once_per_pass(harness: Harness) -> None:
    partition = harness.partition()
    waiter = Waiter()
    partition.check_leader().consumers.add(waiter)
    for _ in range(10):
        harness.append(partition)
    assert waiter.checks == 0
    harness.run_loop()
    assert waiter.checks == 1


def test_one_flush_acknowledges_all_that_came_before_it(harness: Harness) -> None:
    partition = harness.partition(flush_before_ack=True)
    waiter = Waiter()
    partition.add_ack_waiter(waiter)
    for _ in range(5):
        harness.append(partition)
    harness.run_loop()
    assert len(harness.io.work) == 1
    # Too late for the flush that has begun: it gets the next one.
    harness.append(partition)
    harness.io.run_one()
    assert (partition.acknowledged_end_offset(1), partition.acknowledged_end_offset(-1)) == (5, 5)
    harness.run_loop()
    assert (waiter.checks, len(harness.io.work)) == (1, 1)
    harness.io.run_one()
    assert partition.acknowledged_end_offset(-1) == 6


def test_changed_settings_wake_who_waits_and_flush_what_is_due(harness: Harness) -> None:
    partition = harness.partition(min_insync_replicas=2, isr=(1,))
    partition.become_leader(partition_state(1, replicas=(1, 2), epoch=0, version=1))
    harness.append(partition, 3)
    assert partition.high_watermark == 0
    waiter = Waiter()
    partition.check_leader().consumers.add(waiter)
    change(partition, min_insync_replicas=1)
    harness.run_loop()
    assert (partition.high_watermark, waiter.checks) == (3, 1)
    assert harness.io.work == []
    # An acknowledgement that waits for the flush from now on must get one.
    change(partition, flush_before_ack=True)
    harness.run_loop()
    assert partition.acknowledged_end_offset(1) == 0
    harness.io.run_one()
    assert partition.acknowledged_end_offset(1) == 3


def change(partition: Partition, **settings: object) -> None:
    config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
    partition.apply_config(config)


def test_flushed_visibility_follows_the_flush(harness: Harness) -> None:
    partition = harness.partition(visibility_policy="flushed", flush_messages=4)
    waiter = Waiter()
    partition.check_leader().consumers.add(waiter)
    harness.append(partition, 3)
    assert (partition.high_watermark, partition.visible_end_offset, partition.last_stable_offset) == (3, 0, 0)
    harness.append(partition, 2)
    harness.run_loop()
    checks = waiter.checks
    harness.append(partition, 1)
    harness.io.run_one()
    assert partition.visible_end_offset == 5
    harness.run_loop()
    assert waiter.checks > checks


def change_config(partition: Partition, **settings: object) -> None:
    config = TopicConfig.from_properties({name.replace("_", "."): value for name, value in settings.items()})
    partition.apply_config(config)


def test_a_visible_end_does_not_go_back_when_the_policy_becomes_flushed(harness: Harness) -> None:
    partition = harness.partition()
    harness.append(partition, 3)
    change_config(partition, visibility_policy="flushed", flush_messages=100)
    # Shown already: it stays so, and is flushed at once. Nothing unflushed comes on top.
    harness.append(partition, 2)
    assert (partition.visible_end_offset, partition.last_stable_offset) == (3, 3)
    harness.run_loop()
    harness.append(partition, 2)
    harness.io.run_one()
    assert (partition.visible_end_offset, partition.log.log_end_offset) == (5, 7)
    change_config(partition)
    assert partition.visible_end_offset == 7


def test_waiting_fetches_are_woken_when_the_policy_becomes_committed(harness: Harness) -> None:
    partition = harness.partition(visibility_policy="flushed", flush_messages=100)
    waiter = Waiter()
    partition.check_leader().consumers.add(waiter)
    harness.append(partition)
    harness.run_loop()
    checks = waiter.checks
    change_config(partition)
    harness.run_loop()
    assert (waiter.checks, partition.visible_end_offset) == (checks + 1, 1)


def test_flush_before_ack_turned_on_flushes_what_is_unflushed_and_off_answers_who_waits(harness: Harness) -> None:
    partition = harness.partition()
    harness.append(partition)
    change_config(partition, flush_before_ack=True)
    assert partition.acknowledged_end_offset(1) == 0
    harness.run_loop()
    harness.io.run_one()
    assert partition.acknowledged_end_offset(1) == 1
    harness.append(partition)
    waiter = Waiter()
    partition.add_ack_waiter(waiter)
    change_config(partition)
    harness.run_loop()
    assert (waiter.checks, partition.acknowledged_end_offset(1)) == (1, 2)


@pytest.mark.parametrize("settings", [{"flush_messages": 2}, {"flush_ms": 0}])
def test_flush_settings_hold_for_what_is_unflushed_already(harness: Harness, settings: dict[str, object]) -> None:
    partition = harness.partition(flush_messages=10, flush_ms=86_400_000)
    harness.append(partition, 3)
    harness.run_loop()
    assert harness.io.work == []
    change_config(partition, **settings)
    harness.run_loop()
    harness.io.run_one()
    assert partition.log.recovery_point == 3


def test_flushed_visibility_without_flush_settings_flushes_each_append(harness: Harness) -> None:
    partition = harness.partition(visibility_policy="flushed")
    for _ in range(5):
        harness.append(partition)
    assert (partition.visible_end_offset, partition.acknowledged_end_offset(-1)) == (0, 5)
    harness.run_loop()
    assert len(harness.io.work) == 1
    harness.io.run_one()
    assert partition.visible_end_offset == 5


def test_waiting_fetches_are_not_woken_by_appends_that_they_may_not_see(harness: Harness) -> None:
    partition = harness.partition(visibility_policy="flushed", flush_messages=100)
    waiter = Waiter()
    partition.check_leader().consumers.add(waiter)
    harness.append(partition)
    harness.run_loop()
    assert waiter.checks == 0


@pytest.mark.parametrize("mode", [CrashMode.POWER, CrashMode.POWER_TORN])
def test_what_was_visible_survives_a_power_loss_at_any_moment(mode: CrashMode) -> None:
    """Random appends, flushes that have begun or ended, settings that change: never more is shown than is on disk."""
    seed = SEED
    print(f"seed {seed}")
    chance = random.Random(seed)
    shown_at_some_time = 0
    for _ in range(40):
        loop = asyncio.new_event_loop()
        harness = Harness(loop)
        flushes = {"flush_messages": chance.choice([2, 5, 2**63 - 1])}
        partition = harness.partition(visibility_policy="flushed", segment_bytes=600, **flushes)
        shown = 0
        for _ in range(25):
            step = chance.random()
            if step < 0.5:
                harness.append(partition, chance.randint(1, 3))
            elif step < 0.7:
                harness.run_loop()
            elif step < 0.9 and harness.io.work:
                harness.io.run_one()
            elif step < 0.95:
                change_config(
                    partition, visibility_policy="flushed", segment_bytes=600, flush_messages=chance.choice([1, 3, 100])
                )
            assert partition.visible_end_offset >= shown
            shown = partition.visible_end_offset
            newest = partition.log.offset_of_max_timestamp(shown)
            assert newest is None or newest.offset < shown
            if shown:
                left = harness.fs.crash(mode, chance)
                host = LogHost.alone(OpenFiles(left), "/logs", harness.clock)
                log = PartitionLog.open(
                    host, "/logs/t-0", TP, partition.log.topic_id, partition.log.config, LastRun(clean=False)
                )
                assert log.log_end_offset >= shown
        shown_at_some_time += shown > 0
        loop.close()
    assert shown_at_some_time > 20


def test_a_failed_flush_takes_the_partition_offline_and_is_not_repeated(harness: Harness) -> None:
    partition = harness.partition(flush_before_ack=True)
    harness.append(partition)
    harness.run_loop()
    harness.fs.fail("sync")
    harness.io.run_one()
    assert len(harness.failures) == 1
    with pytest.raises(KafkaStorageError):
        partition.check_leader()
    assert partition.acknowledged_end_offset(1) == 0
    partition.request_flush()
    harness.run_loop()
    assert harness.io.work == []


def test_every_listener_hears_of_roles_and_of_a_lost_disk(harness: Harness) -> None:
    heard: list[tuple[str, bool]] = []
    for name in ("first", "second"):
        harness.services.on_role_change.append(lambda each, name=name: heard.append((name, each.is_leader)))
    harness.services.on_offline += [lambda _: heard.append(("third", False)), lambda _: heard.append(("fourth", False))]
    partition = harness.partition()
    assert heard == [("first", True), ("second", True)]
    heard.clear()
    partition.go_offline(OSError(5, "gone"))
    assert heard == [("first", False), ("second", False), ("third", False), ("fourth", False)]


def test_a_partition_that_is_closed_late_leaves_its_log_to_the_next(harness: Harness) -> None:
    before = harness.partition()
    log = before.log
    after = Partition(before.topic_partition, before.topic_id, log, harness.services)
    before.close()
    assert log.on_start_moved == [after._log_start_moved]
    assert log.local.known_damage.listener is after
    after.close()
    assert log.on_start_moved == []
    assert log.local.known_damage.listener is None


def test_a_failed_write_takes_the_partition_offline(harness: Harness) -> None:
    partition = harness.partition()
    harness.append(partition)
    harness.fs.fail("pwrite")
    with pytest.raises(KafkaStorageError):
        harness.append(partition)
    with pytest.raises(KafkaStorageError):
        partition.check_leader()
    assert partition.log.log_end_offset == 1


class TestQueue:
    def queue(self, harness: Harness, partition: Partition, batch: memoryview) -> list[AppendOutcome]:
        outcomes: list[AppendOutcome] = []
        header = None
        if not partition.check_leader().must_queue:
            appended = partition.check_leader().try_append(batch, 9)
            if isinstance(appended, AppendResult):
                return [appended]
            header = appended
        partition.check_leader().append_later(
            QueuedBatch(batch, 9, header, outcomes.append, lambda: harness.released.append(batch))
        )
        return outcomes

    def test_later_batches_do_not_overtake_one_in_a_thread(self, harness: Harness) -> None:
        partition = harness.partition()
        large = harness.batch(values=LARGE, codec="gzip")
        outcomes = [self.queue(harness, partition, harness.batch(2)) for _ in range(1)]
        outcomes += [self.queue(harness, partition, batch) for batch in (large, harness.batch(1))]
        assert [bool(one) for one in outcomes] == [True, False, False]
        assert not harness.released
        harness.io.run_one()
        assert [one[0].base_offset for one in outcomes if isinstance(one[0], AppendResult)] == [0, 2, 3002]
        assert (len(harness.released), partition.check_leader().must_queue) == (2, False)

    def test_a_bad_batch_in_a_thread_spoils_only_itself(self, harness: Harness) -> None:
        partition = harness.partition(cleanup_policy="compact")
        bad = self.queue(harness, partition, harness.batch(values=LARGE, codec="gzip"))
        good = self.queue(harness, partition, harness.batch(1, key=b"k"))
        harness.io.run_one()
        assert (getattr(bad[0], "code", None), getattr(bad[0], "record_index", None)) == (87, 0)
        assert good == [AppendResult(0, 0, -1, False)]

    def test_what_waits_is_answered_when_leadership_goes(self, harness: Harness) -> None:
        partition = harness.partition()
        first = self.queue(harness, partition, harness.batch(values=LARGE, codec="gzip"))
        second = self.queue(harness, partition, harness.batch(1))
        partition.resign(2, 1, 1)
        assert [getattr(one[0], "code", None) for one in (first, second)] == [6, 6]
        # The thread may still be at work on the first one.
        assert len(harness.released) == 1
        harness.io.run_one()
        assert (len(first), partition.log.log_end_offset, len(harness.released)) == (1, 0, 2)

    def test_the_topics_codec_wins(self, harness: Harness) -> None:
        partition = harness.partition(compression_type="zstd")
        outcome = self.queue(harness, partition, harness.batch(5, producer_id=7, producer_epoch=1, base_sequence=3))
        harness.io.run_one()
        assert outcome == [AppendResult(0, 4, -1, False)]
        found = partition.check_leader().read(0, 1 << 20, at_least_one=True)
        assert found is not None
        stored = found.read()
        header: BatchHeader = kernel.scan_headers(stored)[0]
        kernel.check_crc(stored, 0, header.size_bytes)
        assert (header.codec, header.record_count, header.producer_id, header.base_sequence) == (4, 5, 7, 3)

    def test_what_is_too_large_in_the_topics_codec_is_refused(self, harness: Harness) -> None:
        partition = harness.partition(compression_type="uncompressed", max_message_bytes=1000)
        values = [b"a" * 5000]
        large = self.queue(harness, partition, harness.batch(values=values, codec="gzip"))
        small = self.queue(harness, partition, harness.batch(1, codec="gzip"))
        harness.io.run_one()
        harness.io.run_one()
        (error,) = large
        assert isinstance(error, MessageTooLarge) and str(error).endswith("max.message.bytes of the topic is 1000")
        assert small == [AppendResult(0, 0, -1, False)]

    def test_a_large_batch_is_checked_and_written_in_threads_and_nothing_overtakes_it(self, harness: Harness) -> None:
        partition = harness.partition(max_message_bytes=1 << 23)
        waiter = Waiter()
        partition.check_leader().consumers.add(waiter)
        outcomes = [self.queue(harness, partition, harness.batch(2))]
        harness.run_loop()
        checks = waiter.checks
        outcomes += [self.queue(harness, partition, harness.batch(values=values)) for values in (HUGE, [b"v"], HUGE)]
        for _ in ("checked", "written"):
            harness.run_loop()
            assert (len(outcomes[1]), partition.log.log_end_offset, waiter.checks) == (0, 2, checks)
            assert partition.check_leader().read(2, 1 << 20, at_least_one=True) is None
            harness.io.run_one()
        assert [len(one) for one in outcomes] == [1, 1, 1, 0]
        harness.run_loop()
        assert waiter.checks == checks + 1
        harness.io.run_one()
        harness.io.run_one()
        ends = [(one[0].base_offset, one[0].last_offset) for one in outcomes if isinstance(one[0], AppendResult)]
        assert ends == [(0, 1), (2, 4), (5, 5), (6, 8)]
        assert len(harness.released) == 3
        found = partition.check_leader().read(2, 1, at_least_one=True)
        assert found is not None
        assert values_of(found.read()) == [(2 + number, value) for number, value in enumerate(HUGE)]

    def test_a_large_batch_that_is_corrupt_is_refused_by_the_thread(self, harness: Harness) -> None:
        partition = harness.partition(max_message_bytes=1 << 23)
        batch = harness.batch(values=HUGE)
        batch[-1] ^= 1
        outcomes = [self.queue(harness, partition, each) for each in (batch, harness.batch(1))]
        harness.io.run_one()
        assert [getattr(one[0], "code", None) for one in outcomes] == [2, None]
        assert not harness.io.work

    def test_a_large_batch_is_written_again_when_the_segment_rolls_meanwhile(self, harness: Harness) -> None:
        partition = harness.partition(max_message_bytes=1 << 23)
        harness.append(partition)
        outcome = self.queue(harness, partition, harness.batch(values=HUGE))
        harness.io.run_one()
        partition.roll()
        harness.io.run_one()
        assert not outcome
        harness.io.run_one()
        assert outcome == [AppendResult(1, 3, -1, False)]
        sizes = [(each.base_offset, each.size_bytes) for each in partition.log.segments]
        assert sizes == [(each.base_offset, each.file.size()) for each in partition.log.segments]
        assert [base for base, _ in sizes] == [0, 1]

    def test_a_large_batch_is_refused_when_leadership_goes_while_it_is_written(self, harness: Harness) -> None:
        partition = harness.partition(max_message_bytes=1 << 23)
        outcome = self.queue(harness, partition, harness.batch(values=HUGE))
        harness.io.run_one()
        partition.resign(2, 1, 1)
        assert ([getattr(one, "code", None) for one in outcome], harness.released) == ([6], [])
        harness.io.run_one()
        assert (partition.log.log_end_offset, len(harness.released), harness.io.work) == (0, 1, [])
        # The thread has not gone on, and what the new leader has goes to its place.
        active = partition.log.segments.active
        assert active.file.size() == 0
        copy_at_once(partition.log, make_stored_batch(0, 1))
        assert active.file.size() == active.size_bytes

    def test_a_large_batch_that_finds_the_disk_full_is_refused_alone(self, harness: Harness) -> None:
        partition = harness.partition(max_message_bytes=1 << 23)
        outcomes = [self.queue(harness, partition, harness.batch(values=HUGE)) for _ in range(2)]
        harness.fs.fail("pwrite", errno.ENOSPC, skip=3)
        for _ in range(3):
            harness.io.run_one()
        assert [getattr(one[0], "code", None) for one in outcomes] == [56, 56]
        assert (partition.is_leader, partition.log.segments.active.file.size(), harness.failures) == (True, 0, [])

    def test_a_large_batch_that_the_disk_fails_takes_the_partition_offline(self, harness: Harness) -> None:
        partition = harness.partition(max_message_bytes=1 << 23)
        outcomes = [self.queue(harness, partition, harness.batch(values=values)) for values in (HUGE, [b"v"])]
        harness.fs.fail("pwrite", errno.EIO, skip=3)
        harness.io.run_one()
        harness.io.run_one()
        assert [getattr(one[0], "code", None) for one in outcomes] == [56, 56]
        assert (partition.is_leader, len(harness.failures)) == (False, 1)

    def test_a_queue_goes_on_when_memory_runs_out_in_an_append(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        partition = harness.partition()
        outcomes = [self.queue(harness, partition, harness.batch(values=LARGE, codec="gzip"))]
        outcomes += [self.queue(harness, partition, harness.batch(1)) for _ in range(2)]
        fails = iter([True, True, False])
        stamp = kernel.stamp

        def short_of_memory(*arguments: Any) -> None:
            if next(fails):
                raise MemoryError
            stamp(*arguments)

        monkeypatch.setattr(kernel, "stamp", short_of_memory)
        harness.io.run_one()
        assert [getattr(one[0], "code", None) for one in outcomes] == [56, 56, None]

    @pytest.mark.parametrize("damaged", [True, False])
    def test_after_a_fast_start_a_thread_reads_a_damaged_end_first(self, harness: Harness, damaged: bool) -> None:
        before = harness.partition(index_interval_bytes=500)
        for _ in range(200):
            harness.append(before)
        before.log.close()
        index = harness.fs.open(f"/logs/t-0/{0:020d}.index")
        if damaged:
            index.pwrite(b"\x00\x00\x00\x07" * (index.size() // 4), 0)
        host = LogHost.alone(OpenFiles(harness.fs), "/logs", harness.clock)
        last_run = LastRun(clean=True, recovery_point=200, last_record_epoch=0)
        log = PartitionLog.open(host, "/logs/t-0", TP, before.log.topic_id, before.log.config, last_run)
        assert log.segments.active.unread_until_offset == 200
        partition = Partition(TP, b"i" * 16, log, harness.services, 200)
        partition.become_leader(partition_state(1, replicas=(1,), epoch=1, version=1))
        outcomes = [self.queue(harness, partition, harness.batch(2)) for _ in range(3)]
        assert partition.check_leader().must_queue == damaged
        if damaged:
            assert outcomes == [[], [], []]
            harness.io.run_one()
        assert outcomes == [[AppendResult(base, base + 1, -1, False)] for base in (200, 202, 204)]
        assert not harness.io.work

    @pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", -50, 19)])
    def test_levels_of_compression_are_obeyed_at_once(self, harness: Harness, codec: str, low: int, high: int) -> None:
        values = [b"%d" % (number * 7919 % 10007) for number in range(2000)]
        partition = harness.partition()
        sizes = []
        for level in (low, high):
            change(partition, **{"compression_type": codec, f"compression_{codec}_level": level})
            before = partition.log.size_bytes
            self.queue(harness, partition, harness.batch(values=values))
            harness.io.run_one()
            sizes.append(partition.log.size_bytes - before)
        assert sizes[0] > sizes[1] > 0


def accepted_state(epoch: int, incarnation: int, *ranges: tuple[int, int]) -> PartitionState:
    state = partition_state(1, replicas=(1, 2), epoch=epoch, version=epoch)
    return replace(state, accepted_damage=AcceptedDamage(Incarnation(incarnation), ranges))


def test_a_leader_accepts_what_an_operator_has_seen_of_its_log_and_nothing_else(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.services.live_brokers = lambda: {1: live_broker(1, 11, 10)}
    partition = harness.partition(lead=False)
    partition.become_leader(partition_state(1, replicas=(1, 2), epoch=0, version=0))
    harness.append(partition, 100)
    damage = partition.log.local.known_damage
    # What was seen, what is larger than what was seen, and what nobody has seen.
    for each in ((10, 20), (30, 50), (70, 80)):
        damage.add(*each)
    # Of another log.
    partition.become_leader(accepted_state(1, 99, (10, 20), (30, 50), (70, 80)))
    assert not harness.io.work
    partition.become_leader(accepted_state(2, 10, (10, 20), (30, 49)))
    while harness.io.work:
        harness.io.run_one()
    assert damage.ranges == ((30, 50), (70, 80))
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert line == (
        "t-0: offsets 10 to 19 are lost: an operator has accepted that no replica has them; readers pass over them "
        "from now on"
    )
    # The next election may have the same, and the log may have been damaged there since.
    damage.add(75, 90)
    partition.become_leader(accepted_state(3, 10, (10, 20), (70, 80)))
    assert damage.ranges == ((30, 50), (70, 90))


def test_a_follower_that_has_stopped_says_why(harness: Harness) -> None:
    partition = harness.partition(lead=False)
    partition.resign(2, 3, 1)
    follower = partition.role
    assert isinstance(follower, Follower) and follower.why_stopped is None
    follower._rules._claimed_high_watermark = 7
    assert follower.why_stopped is not None
    assert follower.why_stopped.endswith("it keeps its records and waits for that broker to hand over")
    follower._rules.stopped = StopFollowing(5)
    assert follower.why_stopped is not None
    assert "parts from that of broker 2, leader of epoch 3, at offset 5, below its" in follower.why_stopped
    # Until the next leader epoch.
    partition.resign(2, 4, 2)
    assert isinstance(partition.role, Follower) and partition.role.why_stopped is None


def test_a_follower_deletes_nothing_for_a_log_start_behind_its_leaders_end(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    partition = harness.partition()
    harness.append(partition, 3)
    harness.run_loop()
    partition.resign(2, 3, 1)
    follower = partition.role
    assert isinstance(follower, Follower)
    asked = follower.ask(0.0)
    assert asked is not None
    for _ in range(2):
        list(follower.take(asked, FetchedPartition(0, 1, -1, 2, 9), 0.0))
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (0, 3)
    assert follower.ask(99.0) is None
    assert follower.why_stopped == (
        "the log of broker 2, leader of epoch 3, starts at offset 9, behind its own end 2; it keeps its records and "
        "copies nothing until the next leader epoch"
    )
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert line == (
        "t-0: the log of broker 2, leader of epoch 3, starts at offset 9, behind its own end 2; this replica deletes "
        "nothing because of that, keeps its 3 offsets and copies nothing until the next leader epoch. Restart broker "
        "2, which then compares its file of log starts with its log, or elect another replica"
    )


def test_a_closed_partition_is_freed_without_the_collector(harness: Harness) -> None:
    def alive() -> int:
        return sum(isinstance(each, (Partition, PartitionLog)) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        partition = harness.partition()
        harness.append(partition)
        harness.run_loop()
        assert alive() == before + 2
        partition.close()
        partition.log.close(clean=False)
        del partition
        harness.run_loop()
        assert alive() == before
    finally:
        gc.enable()


def test_what_is_queued_after_the_end_is_refused_at_once(harness: Harness) -> None:
    queue = AppendQueue(harness.partition().check_leader(), harness.io)  # type: ignore[arg-type]
    end = NotLeaderOrFollower("gone")
    queue.close(end)
    outcomes: list[object] = []
    queue.add(QueuedBatch(harness.batch(), 9, None, outcomes.append, lambda: outcomes.append("released")))
    assert outcomes == ["released", end]
    assert not queue.waiting


def test_what_the_only_replica_lacks_is_forgotten_on_the_disk_too(harness: Harness) -> None:
    before = harness.partition()
    harness.append(before, 3)
    before.log.close()
    write_damaged_ranges(harness.fs, "/logs/t-0/damaged-ranges", [(1, 2)])
    host = LogHost.alone(OpenFiles(harness.fs), "/logs", harness.clock)
    log = PartitionLog.open(
        host, "/logs/t-0", TP, before.log.topic_id, before.log.config, LastRun(clean=True, recovery_point=3)
    )
    assert log.damaged_ranges == ((1, 2),)
    partition = Partition(TP, b"i" * 16, log, harness.services, 3)
    partition.become_leader(partition_state(1, replicas=(1,), epoch=1, version=1))
    while harness.io.work:
        harness.io.run_one()
    assert (log.damaged_ranges, harness.fs.exists("/logs/t-0/damaged-ranges")) == ((), False)

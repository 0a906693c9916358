"""A leader whose file of leader epochs, or whose log, an in-sync replica contests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.errors import OffsetNotAvailable
from spark_kafkalite.log.files.small_files import read_epochs
from spark_kafkalite.model import BrokerId, Incarnation, TopicPartition
from tests.lab.partition_states import live_broker, partition_state
from tests.unit.broker.replication.test_partition import Harness

FOLLOWER = 2
INCARNATION = Incarnation(20)
STRANGER = Incarnation(21)
TRUE = [(0, 0), (2, 2), (4, 4)]


@pytest.fixture
def harness() -> Iterator[Harness]:
    loop = asyncio.new_event_loop()
    yield Harness(loop)
    loop.close()


@pytest.fixture
def lacking(harness: Harness) -> list[TopicPartition]:
    told: list[TopicPartition] = []
    harness.services.on_lacking = told.append
    return told


@pytest.fixture
def partition(harness: Harness, lacking: list[TopicPartition]) -> Partition:
    """Led in epoch 4; two batches each of epochs 0, 2 and 4, with a follower in sync."""
    harness.services.live_brokers = lambda: {1: live_broker(1), FOLLOWER: live_broker(FOLLOWER)}
    partition = harness.partition(lead=False)
    for version, epoch in enumerate((0, 2, 4), 1):
        state = partition_state(1, FOLLOWER, replicas=(1, FOLLOWER), epoch=epoch, version=version)
        partition.become_leader(state)
        for _ in range(2):
            harness.append(partition)
    assert partition.log.epochs.entries == TRUE
    return partition


def run_threads(harness: Harness) -> None:
    harness.io.run_one()


def check(partition: Partition, high_watermark: int, incarnation: Incarnation = INCARNATION) -> None:
    """Answer a follower whose log ends at offset 5, and whose last record is of epoch 2."""
    leader = partition.check_leader()
    diverging = leader.divergence(2, 5)
    if diverging is not None:
        leader.check_divergence(FOLLOWER, incarnation, 5, high_watermark, diverging)


def test_a_right_answer_needs_no_comparison(partition: Partition, harness: Harness) -> None:
    check(partition, -1)
    assert not harness.io.work


@pytest.mark.parametrize("entries", [[(0, 0), (4, 1)], [(0, 0), (2, 2), (4, 3)], [(0, 0), (4, 4)]])
def test_a_wrong_file_is_completed_before_anybody_goes_by_it(
    partition: Partition,
    harness: Harness,
    lacking: list[TopicPartition],
    caplog: pytest.LogCaptureFixture,
    entries: list[tuple[int, int]],
) -> None:
    partition.log.epochs.replace(entries)
    for _ in range(2):
        with pytest.raises(OffsetNotAvailable, match="compares its log with its leader epochs"):
            check(partition, -1, STRANGER)
    with caplog.at_level(logging.WARNING):
        run_threads(harness)
    assert partition.log.epochs.entries == TRUE
    assert read_epochs(harness.fs, f"{partition.log.directory}/leader-epoch-checkpoint") == TRUE
    assert caplog.text.count("does not fit the log") == 1
    check(partition, -1, STRANGER)
    assert not lacking


def test_a_leader_that_lacks_committed_records_logs_that_once_and_leaves_until_it_has_left(
    partition: Partition, harness: Harness, lacking: list[TopicPartition], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OffsetNotAvailable, match="below 5"):
        check(partition, 5)
    assert not lacking
    run_threads(harness)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(OffsetNotAvailable):
                check(partition, 5)
    assert lacking == [partition.topic_partition] * 3
    assert partition.check_leader().claim == (FOLLOWER, 4, True)
    assert caplog.text.count("lacks committed records") == 1
    assert "up to offset 5" in caplog.text
    assert "parts from them at offset 4, the end of leader epoch 2 here" in caplog.text


@pytest.fixture
def alone(partition: Partition) -> Partition:
    """The leader is alone in the ISR, and the follower is eligible."""
    eligible = {BrokerId(FOLLOWER): INCARNATION}
    partition.become_leader(partition_state(1, replicas=(1, FOLLOWER), epoch=4, version=4, eligible=eligible))
    return partition


def test_an_eligible_replica_contests_what_the_leader_does_not_know_to_be_committed(
    alone: Partition, harness: Harness, lacking: list[TopicPartition]
) -> None:
    known = alone.high_watermark
    assert known < 5
    check(alone, known)
    check(alone, 5, STRANGER)
    assert not harness.io.work
    with pytest.raises(OffsetNotAvailable):
        check(alone, 5)
    run_threads(harness)
    with pytest.raises(OffsetNotAvailable):
        check(alone, 5)
    assert lacking == [alone.topic_partition]


def test_whose_log_ends_below_the_leaders_high_watermark_contests_nothing(
    partition: Partition, harness: Harness, lacking: list[TopicPartition]
) -> None:
    partition.check_leader().follower_fetched(FOLLOWER, INCARNATION, 6)
    assert partition.high_watermark == 6
    for _ in range(2):
        check(partition, 6)
    assert not harness.io.work
    assert not lacking


@pytest.fixture
def shrunk(partition: Partition) -> Partition:
    """The leader is alone in the ISR. The follower is no member and not eligible, but broker 3 is."""
    eligible = {BrokerId(3): Incarnation(30)}
    state = partition_state(1, replicas=(1, FOLLOWER, 3), epoch=4, version=4, eligible=eligible)
    partition.become_leader(state)
    return partition


def test_a_former_member_contests_what_has_gone_before_the_epoch(
    shrunk: Partition, harness: Harness, lacking: list[TopicPartition], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OffsetNotAvailable):
        check(shrunk, 5)
    run_threads(harness)
    for _ in range(2):
        with pytest.raises(OffsetNotAvailable):
            check(shrunk, 5)
    leader = shrunk.check_leader()
    assert leader.claim == (FOLLOWER, 4, False) and len(lacking) == 2
    assert caplog.text.count("until brokers 3 have reported their logs") == 1
    assert "out of sync, has committed records up to offset 5" in caplog.text
    # What is committed from there on has taken the place of what it has.
    assert leader.may_give_up(4)
    shrunk.become_leader(partition_state(1, replicas=(1, FOLLOWER, 3), epoch=4, version=5))
    harness.services.live_brokers = lambda: {each: live_broker(each) for each in (1, FOLLOWER, 3)}
    shrunk.bounds.commit(5)
    assert not leader.may_give_up(4)
    check(shrunk, 5)


def test_a_former_member_contests_nothing_of_what_the_leader_had_when_its_epoch_began(
    shrunk: Partition, harness: Harness, lacking: list[TopicPartition]
) -> None:
    shrunk.check_leader().in_sync.epoch_start_offset = 6
    check(shrunk, 5)
    assert not harness.io.work and not lacking


def test_who_is_no_member_contests_nothing(
    partition: Partition, harness: Harness, lacking: list[TopicPartition]
) -> None:
    for _ in range(2):
        check(partition, 5, STRANGER)
    assert not harness.io.work
    assert not lacking

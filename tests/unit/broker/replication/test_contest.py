"""A leader whose file of leader epochs, or whose log, an in-sync replica contests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.errors import OffsetNotAvailable
from spark_kafkalite.log.files.small_files import read_epochs
from spark_kafkalite.model import Incarnation, TopicPartition
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
    """Answer a follower whose last record, at offset 4, is of epoch 2."""
    leader = partition.check_leader()
    diverging = leader.divergence(2, 5)
    if diverging is not None:
        leader.check_divergence(FOLLOWER, incarnation, high_watermark, diverging)


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


def test_a_leader_that_lacks_committed_records_says_so_once(
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
    assert lacking == [partition.topic_partition]
    assert caplog.text.count("lacks committed records") == 1
    assert "up to offset 5" in caplog.text
    assert "parts from them at offset 4, the end of leader epoch 2 here" in caplog.text


def test_who_is_no_member_contests_nothing(
    partition: Partition, harness: Harness, lacking: list[TopicPartition]
) -> None:
    for _ in range(2):
        check(partition, 5, STRANGER)
    assert not harness.io.work
    assert not lacking

"""Logs that a start does not find whole: the states mean them no more before the broker proves anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from spark_kafkalite.broker.replication.unproven_logs import UnprovenLogs
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Delete
from spark_kafkalite.slices import Slices
from tests.lab.partition_states import incarnations_of, partition_state
from tests.unit.broker.replication.led_partitions import TOPIC_ID, LedPartitions
from tests.unit.slice_clock import SliceClock

COUNT = 4


@pytest.fixture
def led() -> Iterator[LedPartitions]:
    led = LedPartitions(COUNT, 1, 2)
    yield led
    led.loop.close()


def take_back(led: LedPartitions, *numbers: int, seconds: float = 5.0) -> asyncio.Task[bool]:
    logs = {TopicPartition("t", number): "is missing" for number in numbers}
    unproven = UnprovenLogs(led.loop, Slices(led.loop, SliceClock()), led.view, 1, led.store)
    task = led.loop.create_task(unproven.take_back({**logs, TopicPartition("gone", 0): "is missing"}))
    led.run(seconds)
    return task


def test_only_the_states_of_these_logs_are_written(led: LedPartitions, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert take_back(led, 1, 3).result()
    for number in range(COUNT):
        state = led.node(number)
        assert (state.leader, state.isr) == ((-1, (2,)) if number in (1, 3) else (1, (1, 2)))
    (line,) = caplog.messages
    assert line.startswith("not proven to be whole: the log of t-1 is missing, the log of t-3 is missing; what other")
    writes = led.registry.writes
    led.publish()
    assert take_back(led, 1, 3).result() and led.registry.writes == writes


def test_what_somebody_else_has_written_meanwhile_is_read_and_changed(led: LedPartitions) -> None:
    led.set_node(partition_state(2, 1, leader=2, epoch=3), 0)
    assert take_back(led, 0).result()
    state = led.node(0)
    assert (state.leader, state.leader_epoch, state.isr, state.incarnations) == (2, 3, (2,), incarnations_of(2))


def test_it_tries_on_while_the_registry_does_not_answer(led: LedPartitions) -> None:
    led.registry.faults.extend(["dropped", "lost"])
    assert take_back(led, 0).result()
    assert led.node(0).isr == (2,)
    led.has_session = False
    task = take_back(led, 1)
    assert not task.done()
    led.has_session = True
    led.run(5.0)
    assert task.result() and led.node(1).isr == (2,)


def test_where_a_state_cannot_be_written_nothing_is_proven(led: LedPartitions) -> None:
    led.registry.write(Delete(znodes.topic_guard_path(TOPIC_ID)))
    assert not take_back(led, 0).result()
    assert led.node(0).isr == (1, 2)

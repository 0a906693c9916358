"""The tables of states, and what calls do in the states that need no broker."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import pytest

from spark_kafkalite import Consumer, Producer, TopicPartition
from spark_kafkalite.client.consume import consumer_phase
from spark_kafkalite.client.consume.consumer_phase import ConsumerPhase
from spark_kafkalite.client.lifecycle import Lifecycle
from spark_kafkalite.client.produce import producer_phase
from spark_kafkalite.client.produce.producer_phase import ProducerPhase
from spark_kafkalite.errors import ClosedError
from tests.seeds import SEED

ONE = TopicPartition("t", 0)
# A consumer that is closed waits for a look-up of positions that is under way, up to its timeout.
NO_BROKER: dict[str, Any] = {"request_timeout_ms": 50}


@pytest.mark.parametrize(
    ("states", "following"),
    [(ConsumerPhase, consumer_phase.FOLLOWING), (ProducerPhase, producer_phase.FOLLOWING)],
    ids=["consumer", "producer"],
)
def test_states_go_forward_to_the_last_one(states: type[Enum], following: Mapping[Any, Collection[Any]]) -> None:
    order = list(states)
    assert set(following) == set(order)
    for state in order:
        assert all(order.index(state) < order.index(after) for after in following[state])
        assert bool(following[state]) == (state is not order[-1])
    reached = {after for state in order for after in following[state]}
    assert reached == set(order[1:])


def test_many_threads_take_each_step_once() -> None:
    for turn in range(20):
        life = Lifecycle(ConsumerPhase.OPEN, consumer_phase.FOLLOWING)
        taken: list[ConsumerPhase] = []
        start = threading.Barrier(4)

        def close(number: int, life: Any = life, taken: Any = taken, start: Any = start, turn: int = turn) -> None:
            order = list(ConsumerPhase)[1:]
            steps = sorted(random.Random(f"{SEED} {turn} {number}").choices(order, k=8), key=order.index)
            start.wait()
            taken.extend(step for step in steps if life.advance(step))

        threads = [threading.Thread(target=close, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == len(set(taken))
        assert life.state is max(taken, key=list(ConsumerPhase).index, default=ConsumerPhase.OPEN)


def test_a_closed_consumer_serves_nothing_but_close() -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", **NO_BROKER)
    consumer.assign([ONE])
    consumer.close(0)
    consumer.close()
    assert "closed" in repr(consumer)
    assert list(consumer) == []
    calls = [
        lambda: consumer.poll(),
        lambda: consumer.assign([ONE]),
        lambda: consumer.subscribe(["t"]),
        lambda: consumer.unsubscribe(),
        lambda: consumer.seek(ONE, 1),
        lambda: consumer.position(ONE),
        lambda: consumer.commit(),
        lambda: consumer.commit_async(),
        lambda: consumer.committed([ONE]),
        lambda: consumer.end_offsets([ONE]),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()


def test_a_call_that_waits_for_a_position_raises_when_the_consumer_is_closed() -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", auto_offset_reset="earliest", **NO_BROKER)
    consumer.assign([ONE])
    asked = threading.Event()
    heard: list[BaseException] = []

    def ask() -> None:
        asked.set()
        try:
            consumer.position(ONE, 60_000)
        except ClosedError as error:
            heard.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait()
    consumer.close()
    thread.join()
    assert len(heard) == 1


def test_a_producer_that_is_closed_takes_no_records() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1")
    assert "0 bytes on their way" in repr(producer)
    producer.close()
    producer.close()
    producer.flush()
    assert "closed" in repr(producer)
    for call in (lambda: producer.send("t", b"x"), lambda: producer.partitions_for("t")):
        with pytest.raises(ClosedError):
            call()

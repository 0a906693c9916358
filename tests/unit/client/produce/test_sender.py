"""The producer's thread before a broker in the same process: broken connections, answers that do not come, the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.client.config import ProducerConfig, producer_config
from spark_kafkalite.client.lifecycle import Lifecycle
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.produce import sender
from spark_kafkalite.client.produce.accumulator import Accumulator
from spark_kafkalite.client.produce.delivery import Delivery, OnDelivery, ProducerBatch
from spark_kafkalite.client.produce.producer_phase import ProducerPhase, producer_lifecycle
from spark_kafkalite.client.produce.sender import Sender
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import ClosedError, ClusterAuthorizationFailed
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.kernel import OpenBatch
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdResponse
from tests.lab.batches import values_of
from tests.lab.model_broker import ModelBroker
from tests.patience import PATIENCE_S
from tests.seeds import SEED

FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5}
CLUSTER_AUTHORIZATION_FAILED = 31


class Rig:
    """A sender with all that is around it, and the test as its producer."""

    def __init__(self, broker: ModelBroker, **settings: Any) -> None:
        self.broker = broker
        self.config: ProducerConfig = producer_config({"bootstrap.servers": "model:1"}, {**FAST, **settings})
        self.cluster = ClusterClient(self.config.client, SYSTEM_CLOCK, broker.open)
        self.accumulator = Accumulator(self.config, self.config.max_in_flight)
        self.life: Lifecycle[ProducerPhase] = producer_lifecycle()
        self.sender = Sender(self.config, self.cluster, self.accumulator, self.life, SYSTEM_CLOCK)
        self.cluster.refresh(["t"], Deadline.after_ms(10_000))
        self.sender.start()

    def send(self, value: bytes, partition: int = 0, on_delivery: OnDelivery | None = None) -> Delivery:
        """Have a batch of one record sent."""
        with self.accumulator.lock:
            leader = self.cluster.snapshot.leader("t", partition)
            queue = self.accumulator.queue("t", partition, leader)
            records = OpenBatch(1_000)
            records.append(1, None, value, None)
            batch = ProducerBatch("t", partition, SYSTEM_CLOCK.monotonic_s(), 10, records=records)
            if on_delivery is not None:
                batch.callbacks = [(0, 1, on_delivery)]
            assert self.accumulator.try_reserve(10)
            self.accumulator.add_closed(queue, batch)
        self.sender.wake()
        return Delivery(batch, 0, 1)

    def end(self, state: ProducerPhase = ProducerPhase.CLOSING) -> None:
        self.sender.refuse_records(state)
        self.sender.join(PATIENCE_S)
        assert not self.sender.is_alive() and self.life.state is ProducerPhase.ENDED
        self.cluster.close()


def stored(broker: ModelBroker, partition: int = 0) -> list[bytes | None]:
    with broker.lock:
        return [
            value
            for *_, data in broker.partitions[TopicPartition("t", partition)].batches
            for _, value in values_of(data)
        ]


@pytest.fixture
def broker() -> Iterator[ModelBroker]:
    made = ModelBroker({"t": 3})
    yield made
    made.close()


def test_what_was_sent_before_the_close_is_delivered(broker: ModelBroker) -> None:
    rig = Rig(broker)
    sent = [rig.send(b"%03d" % number, number % 3) for number in range(60)]
    rig.end()
    assert [each.result(0).offset for each in sent] == [number // 3 for number in range(60)]
    assert [len(stored(broker, partition)) for partition in range(3)] == [20, 20, 20]


def test_without_acknowledgements_a_batch_counts_when_the_socket_has_it(broker: ModelBroker) -> None:
    rig = Rig(broker, acks=0, enable_idempotence=False)
    sent = [rig.send(b"%d" % number) for number in range(5)]
    assert [each.result(PATIENCE_S).offset for each in sent] == [-1] * 5
    rig.end()


def test_without_acknowledgements_the_next_batches_need_not_wait(
    broker: ModelBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So the sender does not look by itself.
    monkeypatch.setattr(sender, "_MAX_SLEEP_S", 3_600.0)
    rig = Rig(broker, acks=0)
    rig.send(b"warm", 2).result(PATIENCE_S)
    # As if they had come while the thread was busy: nothing wakes it afterwards.
    wake, rig.sender.wake = rig.sender.wake, lambda: None
    sent = [rig.send(b"%d" % number) for number in range(4)]
    wake()
    for each in sent:
        each.result(PATIENCE_S)
    rig.sender.wake = wake
    rig.end()


def test_what_is_aborted_fails_and_waits_for_nobody(broker: ModelBroker) -> None:
    silent = threading.Event()

    def answer_first(api_key: int, request: Any) -> None:
        if api_key == ApiKey.PRODUCE:
            silent.wait(PATIENCE_S)

    broker.answer_first = answer_first
    rig = Rig(broker)
    sent = rig.send(b"x")
    rig.end(ProducerPhase.ABORTING)
    silent.set()
    with pytest.raises(ClosedError):
        sent.result(0)
    assert rig.accumulator.reserved_bytes == 0


def test_a_request_that_is_not_answered_is_sent_again_on_a_new_connection(broker: ModelBroker) -> None:
    silent = threading.Event()
    asked: list[int] = []

    def answer_last(api_key: int, request: Any) -> None:
        if api_key == ApiKey.PRODUCE:
            asked.append(api_key)
            if len(asked) == 1:
                silent.wait(PATIENCE_S)
                raise ConnectionResetError

    broker.answer_last = answer_last
    rig = Rig(broker, request_timeout_ms=300, delivery_timeout_ms=20_000)
    sent = [rig.send(b"%d" % number) for number in range(3)]
    assert [each.result(PATIENCE_S).offset for each in sent] == [0, 1, 2]
    silent.set()
    rig.end()
    # The broker had the first one already.
    assert stored(broker) == [b"0", b"1", b"2"] and len(asked) >= 4


def test_a_producer_id_that_is_refused_fails_what_waits_for_it(broker: ModelBroker) -> None:
    def answer_first(api_key: int, request: Any) -> Any:
        return (
            InitProducerIdResponse(error_code=CLUSTER_AUTHORIZATION_FAILED)
            if api_key == ApiKey.INIT_PRODUCER_ID
            else None
        )

    broker.answer_first = answer_first
    rig = Rig(broker)
    sent = rig.send(b"x")
    with pytest.raises(ClusterAuthorizationFailed):
        sent.result(PATIENCE_S)
    rig.end()


def test_who_waits_for_callbacks_waits_for_those_of_all_that_is_settled(broker: ModelBroker) -> None:
    rig = Rig(broker)
    told: list[object] = []
    for number in range(20):
        rig.send(b"x", on_delivery=lambda *outcome: told.append(outcome)).result(PATIENCE_S)
        rig.sender.wait_for_callbacks(None)
        assert len(told) == number + 1
    rig.end()
    # Also when the thread is through.
    rig.sender.wait_for_callbacks(None)


def test_broken_connections_lose_double_and_reorder_nothing() -> None:
    source = random.Random(SEED)
    for chance in (0.05, 0.3):
        broker = ModelBroker({"t": 3})

        def fail(api_key: int, request: Any, chance: float = chance) -> None:
            if api_key == ApiKey.PRODUCE and source.random() < chance:
                raise ConnectionResetError

        # Before the records are in the log, and after.
        broker.answer_first = broker.answer_last = fail
        rig = Rig(broker)
        sent = [rig.send(b"%04d" % number, number % 3) for number in range(90)]
        rig.end()
        assert all(each.result(0) for each in sent)
        for partition in range(3):
            assert stored(broker, partition) == [b"%04d" % number for number in range(partition, 90, 3)], f"seed {SEED}"
        broker.close()

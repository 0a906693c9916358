"""What becomes of batches when answers come, fail to come, or come too late: the rules, and random schedules."""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from spark_kafkalite.client.config import producer_config
from spark_kafkalite.client.produce.accumulator import Accumulator, PartitionQueue
from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.client.produce.outcomes import Outcomes
from spark_kafkalite.client.produce.produce_requests import ProduceOutcome
from spark_kafkalite.client.produce.producer_metrics import ProducerMetrics
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import (
    BrokerUnreachable,
    ClosedError,
    DeliveryTimeout,
    NotLeaderOrFollower,
    TopicAuthorizationFailed,
)
from spark_kafkalite.records.kernel import OpenBatch
from tests.lab.batches import values_of
from tests.lab.model_broker import ModelPartition
from tests.seeds import SEED, SOAK

NOT_LEADER, TOO_LARGE, TOO_FEW_REPLICAS, NOT_ALLOWED, DUPLICATE = 6, 10, 19, 29, 46


class Sent(NamedTuple):
    """A batch on its way, as it was when it left."""

    queue: PartitionQueue
    batch: ProducerBatch
    data: bytes


class Rig:
    """A producer's batches and outcomes without its thread; the test is thread, cluster and clock."""

    def __init__(self, **settings: Any) -> None:
        config = producer_config({"bootstrap.servers": "h:1"}, {"linger_ms": 0, **settings})
        self.now_s = 1_000.0
        self.refreshes = 0
        self.accumulator = Accumulator(config, config.max_in_flight)
        self.accumulator.producer_id, self.accumulator.producer_epoch = 1, 0
        cluster: Any = self
        self.outcomes = Outcomes(config, cluster, self.accumulator, ProducerMetrics(SYSTEM_CLOCK.monotonic_s))
        self.values = 0
        self.told: Counter[bytes] = Counter()
        self.errors: dict[bytes, Exception | None] = {}

    def request_refresh(self) -> None:
        self.refreshes += 1

    def add(self, partition: int = 0, records: int = 1) -> list[bytes]:
        """Have a batch of records with new values wait."""
        queue = self.accumulator.queue("t", partition, 1)
        builder = OpenBatch(10_000)
        values = []
        callbacks: list[tuple[int, int, Callable[..., None]]] = []
        for index in range(records):
            values.append(b"%08d" % self.values)
            self.values += 1
            builder.append(1, None, values[-1], None)
            callbacks.append((index, 1, partial(self._delivered, values[-1])))
        batch = ProducerBatch("t", partition, self.now_s, 100, records=builder)
        batch.callbacks = callbacks
        assert self.accumulator.try_reserve(100)
        self.accumulator.add_closed(queue, batch)
        return values

    def _delivered(self, value: bytes, metadata: object, error: Exception | None) -> None:
        self.told[value] += 1
        self.errors[value] = error

    def send(self) -> list[Sent]:
        """Take one request's batches, at most one of each partition."""
        queues = [queue for found in self.accumulator.due(self.now_s)[0].values() for queue in found]
        sent = []
        for batch in self.accumulator.drain(queues, 1, 1 << 20):
            batch.encode(0, None)
            sent.append(Sent(self.accumulator.queues["t", batch.partition], batch, bytes(batch.encoded or b"")))
        return sent

    def answer(self, sent: list[Sent], *codes: int, offset: int = 0) -> None:
        outcomes = {
            ("t", each.batch.partition): ProduceOutcome(code, -1 if code else offset, -1, None)
            for each, code in zip(sent, codes, strict=False)
        }
        self.outcomes.take([(each.queue, each.batch) for each in sent], outcomes, self.now_s)

    def lose(self, sent: list[Sent]) -> None:
        for queue, batch, _ in sent:
            self.outcomes.retry(queue, batch, BrokerUnreachable("lost"), self.now_s)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.outcomes.expire(self.now_s)


def test_an_acknowledged_batch_tells_each_record_once() -> None:
    rig = Rig()
    values = rig.add(records=3)
    rig.answer(rig.send(), 0)
    assert rig.outcomes.has_callbacks and not rig.told
    rig.outcomes.run_callbacks()
    rig.outcomes.run_callbacks()
    assert rig.told == dict.fromkeys(values, 1) and set(rig.errors.values()) == {None}
    assert not rig.outcomes.has_to_tell and rig.accumulator.reserved_bytes == 0


def test_a_duplicate_is_in_the_log_and_nobody_knows_where() -> None:
    rig = Rig()
    rig.add()
    (sent,) = rig.send()
    rig.answer([sent], DUPLICATE)
    assert sent.batch.done and sent.batch.error is None and sent.batch.base_offset == -1


@pytest.mark.parametrize(("code", "refreshes"), [(NOT_LEADER, 1), (TOO_FEW_REPLICAS, 0)])
def test_what_passes_is_sent_again_after_a_pause(code: int, refreshes: int) -> None:
    rig = Rig()
    rig.add()
    first = rig.send()
    rig.answer(first, code)
    assert rig.refreshes == refreshes
    assert rig.send() == []
    rig.pass_time(1)
    again = rig.send()
    assert [each.data for each in again] == [each.data for each in first]


def test_a_partition_that_the_answer_leaves_out_is_sent_again() -> None:
    rig = Rig()
    rig.add()
    sent = rig.send()
    rig.answer(sent)
    rig.pass_time(1)
    assert [each.batch for each in rig.send()] == [sent[0].batch]


def test_what_does_not_pass_fails_with_the_brokers_words() -> None:
    rig = Rig()
    (value,) = rig.add()
    rig.answer(rig.send(), NOT_ALLOWED)
    rig.outcomes.run_callbacks()
    error = rig.errors[value]
    assert isinstance(error, TopicAuthorizationFailed) and "t-0: the broker refused a batch of 1 records" in str(error)


def test_retries_are_counted() -> None:
    rig = Rig(retries=2)
    (value,) = rig.add()
    for _ in range(3):
        rig.answer(rig.send(), NOT_LEADER)
        rig.pass_time(2)
    rig.outcomes.run_callbacks()
    assert isinstance(rig.errors[value], NotLeaderOrFollower)


def test_a_wait_for_leaders_is_warned_of_once_until_all_have_one(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for partition in range(3):
        rig.add(partition)
    sent = rig.send()
    queues = [each.queue for each in sent]

    def wait(seconds: int) -> list[str]:
        """As long as there are no leaders they are looked for time and again."""
        caplog.clear()
        for _ in range(seconds * 10):
            rig.outcomes.wait_for_leaders(queues, rig.now_s)
            rig.now_s += 0.1
        return [record.getMessage() for record in caplog.records]

    assert wait(9) == []
    (warning,) = wait(30)
    assert warning.startswith(
        "producer: t-0 and 2 other partitions have no live leader; waiting within delivery.timeou"
    )
    # Two have one now, or their batches are too late; then all.
    last = queues.pop()
    queues[:] = [last]
    assert wait(30) == []
    queues.clear()
    assert wait(1) == []
    queues[:] = [last]
    assert wait(9) == []
    (warning,) = wait(9)
    assert warning.startswith("producer: t-2 has no live leader; ")


def test_a_batch_that_is_too_late_fails_and_nothing_overtakes_it() -> None:
    rig = Rig(delivery_timeout_ms=1_000, request_timeout_ms=500)
    (late,) = rig.add()
    sent = rig.send()
    rig.pass_time(0.5)
    rig.add()
    rig.pass_time(0.6)
    rig.outcomes.run_callbacks()
    assert isinstance(rig.errors[late], DeliveryTimeout) and list(rig.told) == [late]
    # The broker may still have it: the second batch waits until that is known.
    assert rig.send() == []
    rig.answer(sent, 0)
    assert len(rig.send()) == 1
    rig.outcomes.run_callbacks()
    assert rig.told[late] == 1


def test_the_memory_of_a_batch_that_expired_is_free_when_its_connection_is_lost() -> None:
    rig = Rig(delivery_timeout_ms=1_000, request_timeout_ms=500)
    rig.add()
    sent = rig.send()
    rig.pass_time(1.1)
    rig.lose(sent)
    assert rig.accumulator.reserved_bytes == 0 and not rig.accumulator.has_unfinished()


def test_all_that_has_no_outcome_fails_in_the_end() -> None:
    rig = Rig()
    rig.add()
    rig.send()
    rig.add(partition=1)
    rig.outcomes.fail_all(ClosedError("closed"))
    rig.outcomes.run_callbacks()
    assert [type(error) for error in rig.errors.values()] == [ClosedError, ClosedError]
    assert rig.accumulator.reserved_bytes == 0 and not rig.accumulator.has_unfinished()


def test_a_failed_callback_keeps_no_other_from_being_called() -> None:
    rig = Rig()
    rig.add()
    rig.add(partition=1)
    sent = rig.send()
    failing = sent[0].batch

    def fail(*_: object) -> None:
        raise ValueError("mine")

    failing.callbacks = [(0, 1, fail)]
    rig.answer(sent, 0, 0)
    rig.outcomes.run_callbacks()
    assert len(rig.told) == 1 and not rig.outcomes.has_to_tell


class Schedule:
    """A random course of a producer before a broker with faults."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = Rig(delivery_timeout_ms=60_000, request_timeout_ms=30_000)
        self.logs = [ModelPartition(), ModelPartition()]
        self.most_records = self.random.choice([2, 4, 100])
        self.faults = self.random.choice([0.0, 0.1, 0.4])
        self.last: list[bytes] = []
        # Requests on the way, and those whose answers are.
        self.requests: deque[list[Sent]] = deque()
        self.answers: deque[tuple[list[Sent], list[ProduceOutcome | None]]] = deque()

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.25:
            self.rig.add(self.random.randrange(2), self.random.randint(1, 6))
        elif chance < 0.5:
            if len(self.requests) + len(self.answers) < 5 and (sent := self.rig.send()):
                self.requests.append(sent)
        elif chance < 0.7:
            self.serve()
        elif chance < 0.9:
            self.take_answer()
        elif chance < 0.9 + self.faults / 8:
            self.lose_connection()
        else:
            self.rig.pass_time(self.random.choice([0.01, 0.3, 2.0, 15.0]))
        if self.random.random() < 0.1:
            self.rig.outcomes.run_callbacks()

    def serve(self) -> None:
        if self.requests:
            sent = self.requests.popleft()
            self.answers.append((sent, [self.append(each) for each in sent]))

    def append(self, sent: Sent) -> ProduceOutcome | None:
        if self.random.random() < self.faults / 2:
            return ProduceOutcome(self.random.choice([NOT_LEADER, TOO_FEW_REPLICAS, NOT_ALLOWED]), -1, -1, None)
        if len(values_of(sent.data)) > self.most_records:
            return ProduceOutcome(TOO_LARGE, -1, -1, None)
        code, offset = self.logs[sent.batch.partition].append(sent.data)
        # Some answers leave out what was appended.
        return None if self.random.random() < self.faults / 8 else ProduceOutcome(code, offset, -1, None)

    def take_answer(self) -> None:
        if self.answers:
            sent, outcomes = self.answers.popleft()
            found = {("t", s.batch.partition): o for s, o in zip(sent, outcomes, strict=True) if o is not None}
            self.rig.outcomes.take([(each.queue, each.batch) for each in sent], found, self.rig.now_s)

    def lose_connection(self) -> None:
        for _ in range(self.random.randint(0, len(self.requests))):
            self.serve()
        lost = [each for each, _ in self.answers] + list(self.requests)
        self.answers.clear()
        self.requests.clear()
        for sent in lost:
            self.rig.lose(sent)

    def finish(self) -> None:
        """Let the faults end: what is sent from now on is delivered."""
        self.faults = 0.0
        self.last = [value for partition in range(2) for value in self.rig.add(partition)]
        for _ in range(10_000):
            if not self.rig.accumulator.has_unfinished():
                break
            if sent := self.rig.send():
                self.requests.append(sent)
            self.serve()
            self.take_answer()
            self.rig.pass_time(0.1)
        self.rig.outcomes.run_callbacks()

    def check(self) -> None:
        rig = self.rig
        assert rig.accumulator.reserved_bytes == 0 and not rig.outcomes.has_to_tell
        assert rig.told == Counter({b"%08d" % number: 1 for number in range(rig.values)})
        stored: set[bytes] = set()
        for log in self.logs:
            values = [value or b"" for _, _, data in log.batches for _, value in values_of(data)]
            # Values grow in the order of sending: nothing is doubled, and nothing overtook.
            assert values == sorted(set(values))
            stored.update(values)
        assert [rig.errors[value] for value in self.last] == [None, None]
        for value, error in rig.errors.items():
            # What failed may be in the log, once: its first answer may have been lost.
            assert error is not None or value in stored, value


def test_random_schedules_lose_double_and_reorder_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "spark_kafkalite.client")
    for seed in range(SEED, SEED + (2_000 if SOAK else 40)):
        schedule = Schedule(seed)
        for _ in range(schedule.random.randint(50, 400)):
            schedule.step()
        schedule.finish()
        try:
            schedule.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

"""Order, sequences and memory of waiting batches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_kafkalite.client.produce.accumulator import Accumulator, PartitionQueue, expiry_error
from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.errors import NotLeaderOrFollower
from spark_kafkalite.records.kernel import OpenBatch, read_header


def made(**changed: object) -> Accumulator:
    limits = {
        "batch_size": 1_000,
        "linger_ms": 10,
        "buffer_memory": 10_000,
        "delivery_timeout_ms": 1_000,
        "idempotent": True,
        **changed,
    }
    accumulator = Accumulator(SimpleNamespace(**limits), 5)  # type: ignore[arg-type]
    accumulator.producer_id, accumulator.producer_epoch = 9, 0
    return accumulator


def batch(queue: PartitionQueue, created_s: float = 0.0, records: int = 1, reserved: int = 100) -> ProducerBatch:
    builder = OpenBatch(1_000)
    for number in range(records):
        builder.append(number, None, b"v", None)
    return ProducerBatch(queue.topic, queue.partition, created_s, reserved, records=builder)


def proven_queue(accumulator: Accumulator, leader: int = 1) -> PartitionQueue:
    """Return the queue of a partition whose broker has acknowledged a batch before."""
    queue = accumulator.queue("t", 0, leader)
    queue.proven = True
    return queue


def acknowledge(accumulator: Accumulator, acknowledged: ProducerBatch) -> None:
    acknowledged.settle(0, -1, None)
    accumulator.finish(accumulator.queues[acknowledged.topic, acknowledged.partition], acknowledged)


def drain_one_by_one(accumulator: Accumulator) -> list[ProducerBatch]:
    """Drain and acknowledge until nothing is left."""
    drained = []
    while taken := drain(accumulator):
        drained += taken
        for each in taken:
            acknowledge(accumulator, each)
    return drained


def close_all(accumulator: Accumulator, queue: PartitionQueue, *batches: ProducerBatch) -> None:
    for each in batches:
        assert accumulator.try_reserve(each.reserved_bytes)
        accumulator.add_closed(queue, each)


def due_now(accumulator: Accumulator, now_s: float) -> dict[int, list[PartitionQueue]]:
    return accumulator.due(now_s)[0]


def drain(accumulator: Accumulator, now_s: float = 0.0, node: int = 1) -> list[ProducerBatch]:
    return accumulator.drain(due_now(accumulator, now_s).get(node, []), node, 1_000_000)


def test_an_open_batch_leaves_when_it_has_lingered() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    accumulator.open_batch(queue, batch(queue, created_s=5.0))
    assert accumulator.due(5.0) == ({}, 5.01)
    assert due_now(accumulator, 5.01) == {1: [queue]}


@pytest.mark.parametrize("reason", ["flushing", "memory_waiters"])
def test_an_open_batch_leaves_at_once_when_somebody_waits(reason: str) -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    accumulator.open_batch(queue, batch(queue))
    setattr(accumulator, reason, 1)
    assert due_now(accumulator, 0.0) == {1: [queue]}


def test_all_open_batches_leave_at_once_when_the_producer_is_closed() -> None:
    accumulator = made()
    queues = [proven_queue(accumulator), accumulator.queue("u", 0, 1)]
    for queue in queues:
        accumulator.open_batch(queue, batch(queue))
    accumulator.close_batches()
    assert due_now(accumulator, 0.0) == {1: queues}
    # Whoever sends finds none that it could append to.
    assert [queue.open for queue in queues] == [None, None]


def test_a_closed_batch_leaves_before_the_open_one() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    first, second = batch(queue), batch(queue)
    accumulator.open_batch(queue, first)
    accumulator.open_batch(queue, second)
    assert drain(accumulator) == [first]
    assert drain(accumulator) == []
    assert drain(accumulator, 1.0) == [second]


def test_one_request_takes_a_batch_of_each_partition_up_to_its_size() -> None:
    accumulator = made()
    queues = [accumulator.queue("t", number, 1) for number in range(3)]
    for queue in queues:
        queue.proven = True
        close_all(accumulator, queue, batch(queue), batch(queue))
    size = batch(queues[0]).size_bytes
    taken = accumulator.drain(due_now(accumulator, 0.0)[1], 1, 2 * size)
    assert [each.partition for each in taken] == [0, 1]
    # Who was served goes to the end of the round.
    taken = accumulator.drain(due_now(accumulator, 0.0)[1], 1, 2 * size)
    assert [each.partition for each in taken] == [2, 0]


def test_a_batch_larger_than_the_request_goes_alone() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    close_all(accumulator, queue, batch(queue))
    assert len(accumulator.drain([queue], 1, 1)) == 1


def test_at_most_max_in_flight_batches_of_a_partition() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    close_all(accumulator, queue, *(batch(queue) for _ in range(7)))
    taken = [drain(accumulator) for _ in range(7)]
    assert [len(each) for each in taken] == [1, 1, 1, 1, 1, 0, 0]


def test_sequences_follow_each_other_and_stay_on_retry() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    first, second = batch(queue, records=3), batch(queue, records=2)
    close_all(accumulator, queue, first, second)
    drain(accumulator), drain(accumulator)
    assert [(each.producer_id, each.base_sequence) for each in (first, second)] == [(9, 0), (9, 3)]
    accumulator.requeue(queue, first, 0.0)
    accumulator.requeue(queue, second, 0.0)
    assert drain(accumulator) == [first]
    assert (first.base_sequence, first.attempts) == (0, 2)


@pytest.mark.parametrize("idempotent", [True, False])
def test_until_a_batch_is_acknowledged_there_is_one_in_flight(idempotent: bool) -> None:
    # A second batch could overtake a first that is refused: nothing tells them apart without sequences, and a broker
    # without state takes any sequence as the first one.
    accumulator = made(idempotent=idempotent)
    queue = accumulator.queue("t", 0, 1)
    first, second, third = batch(queue), batch(queue), batch(queue)
    close_all(accumulator, queue, first, second, third)
    assert [drain(accumulator), drain(accumulator)] == [[first], []]
    acknowledge(accumulator, first)
    assert [drain(accumulator), drain(accumulator)] == [[second], [third]]
    accumulator.requeue(queue, second, 0.0)
    accumulator.requeue(queue, third, 0.0)
    assert [drain(accumulator), drain(accumulator)] == [[second], []]


def test_sequences_wrap_after_the_largest() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    queue.producer_id, queue.producer_epoch, queue.next_sequence = 9, 0, 2**31 - 1
    close_all(accumulator, queue, batch(queue, records=2), batch(queue))
    assert [drain(accumulator)[0].base_sequence for _ in range(2)] == [2**31 - 1, 1]


def test_nothing_leaves_after_a_failure_until_all_in_flight_are_back() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    batches = [batch(queue) for _ in range(4)]
    close_all(accumulator, queue, *batches)
    for _ in range(3):
        drain(accumulator)
    accumulator.requeue(queue, batches[1], 0.0)
    assert drain(accumulator) == []
    accumulator.requeue(queue, batches[2], 0.0)
    acknowledge(accumulator, batches[0])
    assert drain_one_by_one(accumulator) == batches[1:]


def test_a_retry_waits_for_its_pause() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    only = batch(queue)
    close_all(accumulator, queue, only)
    drain(accumulator)
    accumulator.requeue(queue, only, 3.0)
    assert accumulator.due(2.9) == ({}, 3.0)
    assert drain(accumulator, 3.0) == [only]


def test_a_partition_moves_to_its_new_leader_only_when_nothing_is_in_flight_to_the_old() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    first, second = batch(queue), batch(queue)
    close_all(accumulator, queue, first, second)
    drain(accumulator)
    accumulator.set_leaders(lambda topic, partition: 2)
    assert due_now(accumulator, 0.0) == {}
    first.settle(0, -1, None)
    accumulator.finish(queue, first)
    assert due_now(accumulator, 0.0) == {2: [queue]}


def test_a_lost_sequence_starts_over_only_for_the_first_outstanding_batch() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    first, second = batch(queue, records=2), batch(queue)
    close_all(accumulator, queue, first, second)
    drain(accumulator), drain(accumulator)
    accumulator.lose_sequence(queue, second, 0.0)
    assert (queue.producer_epoch, queue.restart_pending) == (0, False)
    accumulator.lose_sequence(queue, first, 0.0)
    assert queue.producer_epoch == 1
    assert drain_one_by_one(accumulator) == [first, second]
    assert [(each.producer_epoch, each.base_sequence) for each in (first, second)] == [(1, 0), (1, 2)]


def test_sequences_start_over_only_when_all_in_flight_are_back() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    first, second = batch(queue), batch(queue)
    close_all(accumulator, queue, first, second)
    drain(accumulator), drain(accumulator)
    accumulator.lose_sequence(queue, first, 0.0)
    assert queue.producer_epoch == 0
    accumulator.lose_sequence(queue, second, 0.0)
    assert queue.producer_epoch == 1


def test_after_the_last_epoch_another_producer_id_is_needed() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    close_all(accumulator, queue, batch(queue))
    queue.producer_id, queue.producer_epoch = 9, 2**15 - 1
    (taken,) = drain(accumulator)
    accumulator.lose_sequence(queue, taken, 0.0)
    assert (accumulator.producer_id, queue.producer_id) == (-1, -1)


def test_parts_of_a_batch_take_its_place_and_its_sequences() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    large, later = batch(queue, records=5), batch(queue)
    close_all(accumulator, queue, large, later)
    drain(accumulator), drain(accumulator)
    parts = [batch(queue, records=2, reserved=0), batch(queue, records=3, reserved=0)]
    accumulator.replace(queue, large, parts)
    accumulator.requeue(queue, later, 0.0)
    assert drain_one_by_one(accumulator) == [*parts, later]
    assert [each.base_sequence for each in (*parts, later)] == [0, 2, 5]


def test_parts_of_parts_keep_the_order() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    close_all(accumulator, queue, batch(queue, records=4))
    (large,) = drain(accumulator)
    halves = [batch(queue, records=2, reserved=0) for _ in range(2)]
    accumulator.replace(queue, large, halves)
    (first,) = drain(accumulator)
    (second,) = drain(accumulator)
    quarters = [batch(queue, records=1, reserved=0) for _ in range(2)]
    accumulator.replace(queue, first, quarters)
    # The second half was only refused because the first one was: it must wait for the quarters.
    assert queue.has_earlier(second)
    accumulator.lose_sequence(queue, second, 0.0)
    assert not queue.restart_pending
    assert drain_one_by_one(accumulator) == [*quarters, second]


def test_sequences_start_over_when_records_of_a_batch_are_given_up() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    large, later = batch(queue, records=5), batch(queue)
    close_all(accumulator, queue, large, later)
    drain(accumulator), drain(accumulator)
    epoch = queue.producer_epoch
    part = batch(queue, records=3, reserved=0)
    accumulator.replace(queue, large, [part])
    # Not while something is in flight with a sequence of before.
    assert queue.producer_epoch == epoch
    accumulator.lose_sequence(queue, later, 0.0)
    assert drain_one_by_one(accumulator) == [part, later]
    assert [(each.producer_epoch, each.base_sequence) for each in (part, later)] == [(epoch + 1, 0), (epoch + 1, 3)]


def test_a_batch_of_which_nothing_is_left_frees_its_memory() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    close_all(accumulator, queue, batch(queue))
    (whole,) = drain(accumulator)
    before = accumulator.reserved_bytes
    reserved = whole.reserved_bytes
    accumulator.replace(queue, whole, [])
    assert accumulator.reserved_bytes == before - reserved
    assert not accumulator.has_unfinished()


def test_parts_keep_their_order_however_often_parts_are_made_of_them() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    later = batch(queue)
    close_all(accumulator, queue, batch(queue, records=100), later)
    (rest,) = drain(accumulator)
    sent = []
    for left in range(99, 0, -1):
        first, second = batch(queue, records=1, reserved=0), batch(queue, records=left, reserved=0)
        accumulator.replace(queue, rest, [first, second])
        sent.append(first)
        assert list(queue.waiting) == [first, second, later]
        queue.waiting.popleft()
        (rest,) = drain(accumulator)
    assert rest.order < later.order and rest.order_span > 0


def test_memory_is_bounded_but_for_one_batch() -> None:
    accumulator = made(buffer_memory=150)
    queue = proven_queue(accumulator)
    assert accumulator.try_reserve(1_000)
    assert not accumulator.try_reserve(1)
    accumulator.release(1_000)
    only = batch(queue, reserved=100)
    close_all(accumulator, queue, only)
    assert not accumulator.try_reserve(51) and accumulator.try_reserve(50)
    only.settle(0, -1, None)
    accumulator.finish(queue, only)
    assert accumulator.reserved_bytes == 50
    assert not accumulator.has_unfinished()


def test_batches_expire_wherever_they_are() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    close_all(accumulator, queue, batch(queue, created_s=1.0), batch(queue, created_s=1.5))
    (sent,) = drain(accumulator, 2.0)
    accumulator.open_batch(queue, batch(queue, created_s=9.0))
    expired, next_s = accumulator.expire(2.5)
    assert [(each.created_s, each.attempts) for _, each in expired] == [(1.0, 1), (1.5, 0)]
    assert next_s == 10.0
    assert "may or may not be in the log" in str(expiry_error(sent, 1_000, NotLeaderOrFollower("moved")))
    assert "last error: moved" in str(expiry_error(sent, 1_000, NotLeaderOrFollower("moved")))
    assert "never sent" in str(expiry_error(expired[1][1], 1_000, None))


def test_a_batch_that_expired_in_flight_keeps_its_place_until_its_answer() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    first, second = batch(queue), batch(queue)
    close_all(accumulator, queue, first, second)
    drain(accumulator)
    first.settle(-1, -1, ValueError())
    accumulator.requeue(queue, first, 0.0)
    assert list(queue.batches()) == [second]
    assert drain(accumulator) == [second]
    assert second.base_sequence == 1


def test_an_encoded_batch_gets_its_sequence_in_its_bytes() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    encoded = batch(queue, records=2)
    encoded.encode(0, None)
    close_all(accumulator, queue, encoded)
    drain(accumulator)
    header = read_header(encoded.encode(0, None))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 0, 0)


def test_nothing_follows_a_batch_that_is_sent_again_until_it_has_its_outcome() -> None:
    accumulator = made()
    queue = proven_queue(accumulator)
    first, second, third = batch(queue), batch(queue), batch(queue)
    close_all(accumulator, queue, first, second, third)
    assert drain(accumulator) == [first] and drain(accumulator) == [second]
    accumulator.requeue(queue, first, 0.0)
    # The broker remembers five batches: more acknowledged ones behind the first would push it out.
    acknowledge(accumulator, second)
    assert drain(accumulator) == [first]
    assert drain(accumulator) == []
    acknowledge(accumulator, first)
    assert drain(accumulator) == [third]

from __future__ import annotations

import random
import time
from collections.abc import Generator

import pytest

from spark_kafkalite.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber, UnknownProducerId
from spark_kafkalite.log import producer_snapshot, producer_state
from spark_kafkalite.log.producer_state import ProducerIdLimits, ProducerStateManager
from spark_kafkalite.records.layout import BatchHeader
from tests.seeds import SEED, SOAK

LAST = 2**31 - 1


def header(
    sequence: int, *, count: int = 1, epoch: int = 0, producer_id: int = 7, timestamp: int = 1000, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(
        0, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count
    )


def expire(state: ProducerStateManager, before_ms: int) -> int:
    return run(state.expire(before_ms + state.limits.expiration_ms))


def run(work: Generator[None, None, int]) -> int:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return int(end.value)


@pytest.fixture
def state() -> ProducerStateManager:
    """Producer 7 has written sequences 0-9 (offset 100), 10, 11 and 12 (offset 200 to 202)."""
    state = ProducerStateManager()
    state.update(header(0, count=10), 100, 1000)
    for number in range(3):
        state.update(header(10 + number), 200 + number, 1000)
    return state


def test_unknown_producer_may_start_anywhere(state: ProducerStateManager) -> None:
    assert state.check(header(12345, producer_id=8)) is None


def test_next_sequence_is_new(state: ProducerStateManager) -> None:
    assert state.check(header(13, count=5)) is None


@pytest.mark.parametrize(
    ("sequence", "count", "base_offset", "last_offset"), [(0, 10, 100, 109), (10, 1, 200, 200), (12, 1, 202, 202)]
)
def test_batch_in_the_log_is_a_duplicate(
    state: ProducerStateManager, sequence: int, count: int, base_offset: int, last_offset: int
) -> None:
    found = state.check(header(sequence, count=count))
    assert found is not None
    assert (found.base_offset, found.last_offset) == (base_offset, last_offset)


@pytest.mark.parametrize(("sequence", "count"), [(14, 1), (0, 9), (1, 9), (11, 2), (12, 2)])
def test_gap_and_partial_repetition_are_out_of_order(state: ProducerStateManager, sequence: int, count: int) -> None:
    with pytest.raises(OutOfOrderSequenceNumber, match="13 was expected"):
        state.check(header(sequence, count=count))


def test_only_five_batches_are_remembered(state: ProducerStateManager) -> None:
    for number in range(13, 15):
        state.update(header(number), 190 + number, 1000)
    with pytest.raises(OutOfOrderSequenceNumber):
        state.check(header(0, count=10))
    assert state.check(header(10)) is not None


def test_older_epoch_is_fenced(state: ProducerStateManager) -> None:
    state.update(header(0, epoch=3), 300, 1000)
    with pytest.raises(InvalidProducerEpoch, match="epoch 2 is older than 3"):
        state.check(header(1, epoch=2))


def test_new_epoch_starts_at_zero_and_forgets_older_batches(state: ProducerStateManager) -> None:
    with pytest.raises(OutOfOrderSequenceNumber, match="must start at sequence 0"):
        state.check(header(13, epoch=1))
    assert state.check(header(0, epoch=1)) is None
    state.update(header(0, epoch=1), 300, 1000)
    assert state.check(header(1, epoch=1)) is None
    repeated = state.check(header(0, epoch=1))
    assert repeated is not None
    assert repeated.base_offset == 300


def test_sequences_go_on_at_zero_after_the_last() -> None:
    state = ProducerStateManager()
    state.update(header(LAST - 1, count=2), 0, 1000)
    assert state.check(header(0)) is None
    with pytest.raises(OutOfOrderSequenceNumber, match="0 was expected"):
        state.check(header(1))


def test_batch_across_the_last_sequence_is_followed_and_recognised() -> None:
    state = ProducerStateManager()
    state.update(header(LAST - 1, count=5), 0, 1000)
    assert state.check(header(3)) is None
    assert state.check(header(LAST - 1, count=5)) is not None


def test_silent_producers_expire(state: ProducerStateManager) -> None:
    state.update(header(0, producer_id=8), 300, 5000)
    assert expire(state, 5000) == 1
    assert list(state.producers) == [8]


def test_producer_with_an_open_transaction_does_not_expire() -> None:
    state = ProducerStateManager()
    state.update(header(0, attributes=0x10), 40, 1000)
    state.update(header(1, attributes=0x10), 41, 1000)
    assert state.first_open_transaction_offset() == 40
    assert expire(state, 10**9) == 0
    # The marker ends the transaction; its base sequence is -1.
    state.update(header(-1, attributes=0x30), 42, 1000)
    assert state.first_open_transaction_offset() is None
    assert state.check(header(2, attributes=0x10)) is None


# Bounds


def full_state(count: int, max_ids: int, *, first_ms: int = 1000) -> ProducerStateManager:
    """Producers 0 and up have written one record each, one a millisecond."""
    state = ProducerStateManager(ProducerIdLimits(max_ids))
    for number in range(count):
        state.update(header(0, producer_id=number), number, first_ms + number)
    return state


@pytest.mark.parametrize("max_ids", [1, 10, 1500, 5000])
def test_the_longest_idle_go_first(max_ids: int) -> None:
    state = full_state(max_ids, max_ids)
    assert (len(state), state.forgotten, state.forgotten_seen_ms) == (max_ids, 0, -1)
    # Seen again, so that the second is the longest idle.
    state.update(header(1, producer_id=0), max_ids, 1000 + max_ids)
    for number in range(max_ids, max_ids + 5):
        state.update(header(0, producer_id=number), number, 2000 + number)
    assert len(state) <= max_ids
    gone = set(range(max_ids + 5)) - set(state.producers)
    assert len(gone) == state.forgotten
    others = [number for number in range(1, max_ids + 5) if number not in gone]
    assert others == list(range(others[0], max_ids + 5)), "none went that was seen after one that stayed"
    assert (0 in gone) == (max_ids == 1)


def test_forgotten_producer_may_only_begin(state: ProducerStateManager) -> None:
    state.limits.max_ids = 2
    assert state.check(header(5, producer_id=99)) is None, "nothing was forgotten yet"
    for number in (8, 9, 10):
        state.update(header(0, producer_id=number), 300 + number, 2000)
    assert state.forgotten
    for sequence in (1, 10, 13, LAST):
        with pytest.raises(UnknownProducerId, match=r"max\.producer\.ids\.per\.partition=2"):
            state.check(header(sequence))
    assert state.check(header(0)) is None
    assert state.check(header(0, epoch=1)) is None
    state.update(header(0, epoch=1), 400, 2001)
    assert state.check(header(1, epoch=1)) is None


def test_open_transactions_are_never_forgotten() -> None:
    state = ProducerStateManager(ProducerIdLimits(50))
    for number in range(40):
        state.update(header(0, producer_id=number, attributes=0x10), number, 1000)
    for number in range(40, 3000):
        state.update(header(0, producer_id=number), number, 1000 + number)
    assert set(range(40)) <= set(state.producers)
    # It passes over some of them at a time, so there may be a few more for a moment.
    assert len(state) <= 55
    assert state.first_open_transaction_offset() == 0
    # All of them open: then there are more than the limit.
    for number in range(5000, 5100):
        state.update(header(0, producer_id=number, attributes=0x10), number, 9000)
    assert set(range(5000, 5100)) | set(range(40)) <= set(state.producers)
    assert run(state.expire(10_000)) == 0
    state.update(header(-1, producer_id=3, attributes=0x30), 6000, 9001)
    state.update(header(0, producer_id=4), 6001, 9002)
    for number in range(7000, 7100):
        state.update(header(0, producer_id=number), number, 9500)
    assert 3 not in state.producers


def test_packed_producers_lose_nothing() -> None:
    """A random run of many producers, beside one state for each of them, which never packs it."""
    chance = random.Random(SEED)
    state = ProducerStateManager()
    alone: dict[int, ProducerStateManager] = {}
    next_sequence: dict[int, int] = {}
    for offset in range(100_000 if SOAK else 8_000):
        producer_id = chance.randrange(3000) if chance.random() < 0.7 else chance.randrange(30)
        sequence = next_sequence.get(producer_id, 0)
        batch = header(sequence, producer_id=producer_id, attributes=chance.choice((0, 0, 0, 0x10)), timestamp=offset)
        for each in (state, alone.setdefault(producer_id, ProducerStateManager())):
            each.update(batch, offset, offset)
        next_sequence[producer_id] = sequence + 1
    found, last_offsets = state.producers, state.last_offsets()
    assert found.keys() == alone.keys()
    for producer_id, only in alone.items():
        expected = only.producers[producer_id]
        for name in ("batches", "last_seen_ms", "producer_epoch", "transaction_first_offset", "from_snapshot"):
            assert getattr(found[producer_id], name) == getattr(expected, name), (producer_id, name, SEED)
        assert state.check(header(next_sequence[producer_id], producer_id=producer_id)) is None
        last = state.check(header(next_sequence[producer_id] - 1, producer_id=producer_id))
        assert last is not None and last.last_offset == last_offsets[producer_id]
    opened = [only.first_open_transaction_offset() for only in alone.values()]
    assert state.first_open_transaction_offset() == min(offset for offset in opened if offset is not None)


def test_forgotten_ids_are_forgotten_when_they_would_have_expired() -> None:
    state = full_state(20, 10)
    state.limits.expiration_ms = 1000
    with pytest.raises(UnknownProducerId):
        state.check(header(3, producer_id=0))
    run(state.expire(state.forgotten_seen_ms + 1000))
    with pytest.raises(UnknownProducerId):
        state.check(header(3, producer_id=0))
    run(state.expire(state.forgotten_seen_ms + 1001))
    assert state.check(header(3, producer_id=0)) is None


def test_a_clock_that_was_ahead_keeps_nobody_for_ever() -> None:
    year_ms = 365 * 86_400_000
    state = full_state(3000, 2500, first_ms=year_ms)
    for _ in range(2):
        run(state.expire(10_000))
    left = len(state)
    assert 2400 < left <= 2500
    assert state.forgotten_seen_ms <= 10_000
    assert expire(state, 10_001) == left
    assert len(state) == 0
    run(state.expire(10_002 + state.limits.expiration_ms))
    assert state.forgotten_seen_ms == -1


def test_lowered_limit_takes_effect_without_appends() -> None:
    state = full_state(5000, 10_000)
    state.limits.max_ids = 100
    run(state.expire(7000))
    assert len(state) == 100
    assert set(state.producers) == set(range(4900, 5000))


def test_no_turn_has_to_do_with_more_than_some_hundred_producers() -> None:
    most = producer_state._EXPIRED_AT_ONCE
    state = full_state(20_000, 20_000)
    # As many more as a lowered limit leaves to be forgotten.
    state.limits.max_ids = 15_000
    left = len(state)
    while left > 15_000:
        state.update(header(0, producer_id=20_000 + left), 20_000, 20_000)
        assert 0 < left + 1 - len(state) <= most
        left = len(state)
    work = state.expire(10**10)
    turns = 0
    while len(state):
        left = len(state)
        if next(work, "the end") == "the end":
            # The last turn takes those that are held as objects.
            assert left <= producer_state._HELD + producer_state._PACKED_AT_ONCE
            break
        assert left - len(state) <= most
        turns += 1
    assert turns >= 10_000 // most
    assert len(state) == 0


@pytest.mark.soak
def test_no_turn_is_long_with_a_hundred_thousand_producers() -> None:
    """Measured on a busy machine: 6 ms for the worst append, 23 ms for a snapshot, 0.4 ms for a slice of expiry."""
    state = full_state(100_000, 100_000)
    longest_s = 0.0
    for number in range(100_000, 101_000):
        batch = header(0, producer_id=number)
        began_s = time.thread_time()
        state.update(batch, number, number)
        longest_s = max(longest_s, time.thread_time() - began_s)
    assert longest_s < 0.05
    began_s = time.thread_time()
    snapshot = producer_snapshot.encode(state)
    assert time.thread_time() - began_s < 0.1
    assert len(snapshot) < 47 * 100_001
    work = state.expire(10**10)
    began_s = time.thread_time()
    next(work)
    assert time.thread_time() - began_s < 0.02
    assert run(work) > 99_000
    assert len(state) == 0

"""Which batches a read_committed reader sees."""

from __future__ import annotations

import struct

from spark_kafkalite.client.consume.isolation import AbortedTransactions
from spark_kafkalite.records.control import COMMIT, Marker, build_marker
from spark_kafkalite.records.kernel import OpenBatch, read_header


def data(base_offset: int, producer_id: int, *, transactional: bool = True, records: int = 2) -> memoryview:
    builder = OpenBatch(10_000)
    for _ in range(records):
        builder.append(0, None, b"v", None)
    built = builder.build(
        0, None, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional
    )
    struct.pack_into(">q", built, 0, base_offset)
    return memoryview(built)


def marker(base_offset: int, producer_id: int, kind: int) -> memoryview:
    """A control batch: abort (0) or commit (1)."""
    built = build_marker(producer_id, 0, Marker(commits=kind == COMMIT, coordinator_epoch=1), 0)
    struct.pack_into(">q", built, 0, base_offset)
    return memoryview(built)


def hidden(aborted: list[tuple[int, int]] | None, *batches: memoryview) -> list[bool]:
    transactions = AbortedTransactions(aborted)
    return [transactions.hides(each, 0, read_header(each)) for each in batches]


def test_an_aborted_producer_is_hidden_until_its_marker() -> None:
    batches = [data(0, 7), data(2, 8), data(4, 7), marker(6, 7, 0), data(7, 7), marker(9, 7, 1), marker(10, 8, 1)]
    assert hidden([(7, 0)], *batches) == [True, False, True, True, False, True, True]


def test_two_aborted_transactions_of_one_producer() -> None:
    batches = [data(0, 7), marker(2, 7, 0), data(3, 7), marker(5, 7, 1), data(6, 7), marker(8, 7, 0)]
    assert hidden([(7, 6), (7, 0)], *batches) == [True, True, False, True, True, True]


def test_a_transaction_that_starts_inside_a_batch_counts_for_it() -> None:
    # The list may name the producer's first offset, which lies inside the fetched batch.
    assert hidden([(7, 1)], data(0, 7)) == [True]
    assert hidden([(7, 2)], data(0, 7)) == [False]


def test_a_commit_does_not_end_somebody_elses_abort() -> None:
    assert hidden([(7, 0)], data(0, 7), marker(2, 8, 1), data(3, 7)) == [True, True, True]


def test_batches_without_transaction_are_seen() -> None:
    assert hidden([(7, 0)], data(0, 7, transactional=False)) == [False]
    assert hidden(None, data(0, 7)) == [False]

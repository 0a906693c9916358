"""Records of open transactions, against a model that keeps the whole log."""

from __future__ import annotations

import random

import pytest

from spark_kafkalite.coordinator.open_transactions import OpenTransactions, ProducerIdAndEpoch
from tests.seeds import SEED, SOAK

P7, P8 = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 3)


def test_a_commit_brings_the_last_record_of_each_key_in_the_order_of_the_log() -> None:
    transactions: OpenTransactions[str, int] = OpenTransactions()
    assert not transactions.producers_of
    for offset, (key, value) in enumerate([("a", 1), ("b", 2), ("a", 3), ("c", None)]):
        transactions.add(P7, key, value, offset)
    assert set(transactions.producers_of) == {"a", "b", "c"}
    assert list(transactions) == [(P7, [("b", 2, 1), ("a", 3, 2), ("c", None, 3)])]
    assert transactions.end(7, commits=True) == [("b", 2, 1), ("a", 3, 2), ("c", None, 3)]
    assert not transactions.producers_of and list(transactions) == []
    assert transactions.end(7, commits=True) == [], "a marker that is repeated"


def test_an_abort_brings_nothing_and_leaves_the_others() -> None:
    transactions: OpenTransactions[str, int] = OpenTransactions()
    transactions.add(P7, "a", 1, 0)
    transactions.add(P8, "a", 2, 1)
    assert transactions.end(7, commits=False) == []
    assert transactions.end(8, commits=True) == [("a", 2, 1)]


def test_what_lies_before_a_committed_record_is_dropped_and_nothing_else() -> None:
    transactions: OpenTransactions[str, int] = OpenTransactions()
    transactions.add(P7, "a", 1, 5)
    transactions.add(P8, "a", 2, 9)
    transactions.overtake("a", 7)
    transactions.overtake("b", 7)
    assert next(iter(transactions)) == (P7, [])
    assert transactions.end(7, commits=True) == []
    assert transactions.end(8, commits=True) == [("a", 2, 9)]


def test_of_two_transactions_the_later_record_stays_whichever_commits_first() -> None:
    for first, second in ((7, 8), (8, 7)):
        transactions: OpenTransactions[str, int] = OpenTransactions()
        transactions.add(P7, "a", 1, 0)
        transactions.add(P8, "a", 2, 1)
        values = {}
        for producer_id in (first, second):
            values.update({key: value for key, value, _ in transactions.end(producer_id, commits=True)})
        assert values == {"a": 2}


@pytest.mark.parametrize("seed", range(SEED, SEED + (200 if SOAK else 20)))
def test_random_logs_leave_what_their_committed_records_make(seed: int) -> None:
    chance = random.Random(seed)
    transactions: OpenTransactions[str, int] = OpenTransactions()
    values: dict[str, int] = {}
    # (key, value, producer id or None, whether it counts)
    log: list[list[object]] = []

    def take(key: str, value: int | None) -> None:
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value

    for _ in range(600):
        what, producer_id = chance.random(), chance.randrange(4)
        key, value = chance.choice("abcde"), None if chance.random() < 0.2 else chance.randrange(1000)
        if what < 0.3:
            transactions.overtake(key, len(log))
            take(key, value)
            log.append([key, value, None, True])
        elif what < 0.8:
            transactions.add(ProducerIdAndEpoch(producer_id, 0), key, value, len(log))
            log.append([key, value, producer_id, False])
        else:
            commits = chance.random() < 0.5
            for ended_key, ended_value, _ in transactions.end(producer_id, commits=commits):
                take(ended_key, ended_value)
            for record in log:
                if record[2] == producer_id:
                    record[2:] = [None, commits]
        expected: dict[object, object] = {}
        for logged_key, logged_value, _, counts in log:
            if counts:
                expected[logged_key] = logged_value
        assert values == {each: value for each, value in expected.items() if value is not None}
    assert len({record[2] for record in log}) > 1

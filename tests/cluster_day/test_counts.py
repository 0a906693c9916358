"""What the comparison of a day's counts finds."""

from __future__ import annotations

from tests.cluster_day.counts import wrong_in_copy, wrong_in_log

ACKNOWLEDGED = {b"a": (0, 0), b"b": (0, 1), b"c": (1, -1)}
ROWS = [(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"c")]
LOG = {(partition, offset): value for partition, offset, value in ROWS}


def test_a_log_with_every_acknowledged_value_once_is_right() -> None:
    assert wrong_in_log(ACKNOWLEDGED, ROWS) == []


def test_what_a_log_has_lost_has_twice_or_has_elsewhere_is_named() -> None:
    assert wrong_in_log(ACKNOWLEDGED, ROWS[1:]) == ["acknowledged and not in the log: b'a'"]
    assert wrong_in_log(ACKNOWLEDGED, [*ROWS, (1, 1, b"a")]) == [
        "in the log more than once: (b'a', [(0, 0), (1, 1)])",
    ]
    assert wrong_in_log(ACKNOWLEDGED, [*ROWS, (1, 1, b"d")]) == [
        "in the log without an acknowledgement: (b'd', [(1, 1)])"
    ]
    assert wrong_in_log(ACKNOWLEDGED, [(0, 0, b"b"), (0, 1, b"a"), (1, 0, b"c")]) == [
        "elsewhere than acknowledged: (b'a', (0, 0), [(0, 1)]), (b'b', (0, 1), [(0, 0)])"
    ]
    # Of the third one only the partition was told.
    assert wrong_in_log(ACKNOWLEDGED, [*ROWS[:2], (2, 0, b"c")]) == [
        "elsewhere than acknowledged: (b'c', (1, -1), [(2, 0)])"
    ]


def test_a_copy_has_every_record_of_the_log_once() -> None:
    assert wrong_in_copy("files", LOG, ROWS) == []
    assert wrong_in_copy("files", LOG, ROWS[:2]) == ["files: not there: (1, 0)"]
    assert wrong_in_copy("files", LOG, [*ROWS, ROWS[0]]) == ["files: there more than once: (0, 0)"]
    assert wrong_in_copy("files", LOG, [*ROWS[:2], (1, 0, b"x")]) == [
        "files: not what the log holds there: (1, 0, b'x')"
    ]
    assert wrong_in_copy("files", LOG, [*ROWS, (1, 1, b"x")]) == ["files: not what the log holds there: (1, 1, b'x')"]


def test_who_reads_in_a_group_may_read_again() -> None:
    assert wrong_in_copy("group", LOG, [*ROWS, ROWS[0]], each_once=False) == []


def test_of_many_differences_the_first_ones_are_named() -> None:
    assert wrong_in_log({b"%d" % n: (0, n) for n in range(5)}, []) == [
        "acknowledged and not in the log: b'0', b'1', b'2' and 2 more"
    ]

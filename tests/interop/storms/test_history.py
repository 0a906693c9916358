"""Every kind of violation is seen in a forged history, and a right history has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.storms.history import Event, final_owners, read_journals, violations

ENDS = {0: 20, 1: 10}


def assigned(time: int, member: str, generation: int, *partitions: int) -> Event:
    return Event(time, member, "assigned", generation, partitions=frozenset(partitions))


def revoked(time: int, member: str, generation: int, *partitions: int) -> Event:
    return Event(time, member, "revoked", generation, partitions=frozenset(partitions))


def delivered(time: int, member: str, generation: int, partition: int, first: int, following: int) -> Event:
    return Event(time, member, "delivered", generation, partition, first, following)


def commit(since: int, until: int, member: str, generation: int, offsets: dict[int, int]) -> list[Event]:
    return [
        Event(since, member, "committing", generation, number=since, offsets=offsets),
        Event(until, member, "committed", generation, number=since, offsets=offsets),
    ]


def observed(since: int, until: int, partition: int, offset: int) -> Event:
    return Event(until, "observer", "observed", partition=partition, first=offset, since=since)


def static(time: int, member: str) -> Event:
    return Event(time, member, "started", text="static-1")


# a reads everything of both partitions; b joins, takes partition 0 and reads its last five records again.
RIGHT = [
    Event(1, "a", "started"),
    assigned(2, "a", 1, 0, 1),
    delivered(3, "a", 1, 0, 0, 15),
    delivered(3, "a", 1, 1, 0, 10),
    *commit(4, 5, "a", 1, {0: 10, 1: 10}),
    observed(6, 7, 0, 10),
    Event(8, "b", "started"),
    revoked(9, "a", 1, 0, 1),
    assigned(10, "a", 2, 1),
    assigned(11, "b", 2, 0),
    delivered(12, "b", 2, 0, 10, 20),
    *commit(13, 14, "b", 2, {0: 20}),
    observed(15, 16, 0, 20),
    Event(17, "b", "left"),
]
TAKEN_OVER = [static(17, "c"), static(18, "d"), assigned(19, "c", 3, 0), assigned(20, "d", 3, 0)]


def test_a_right_history_has_no_violation() -> None:
    assert violations(RIGHT, ENDS) == []
    assert violations(list(reversed(RIGHT)), ENDS) == []
    assert final_owners(RIGHT) == {"a": {1}, "b": frozenset()}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ([Event(12, "b", "wrong", partition=0, first=11, text="x")], "wrong record: b read x at offset 11"),
        ([assigned(12, "c", 2, 0)], "two owners: partition 0 was b's and c's in generation 2 (assigned)"),
        ([delivered(12, "a", 2, 0, 15, 16)], "two owners: partition 0 was b's and a's in generation 2 (delivered)"),
        ([delivered(13, "b", 2, 0, 15, 20)], "broken stream: b was at offset 20 of partition 0 and was given 15"),
        ([delivered(12, "a", 2, 1, 5, 10)] * 2, "broken stream: a was at offset 10 of partition 1 and was given 5"),
        ([assigned(12, "a", 1, 1)], "generation went back: a was given 1 after 2"),
        (
            [Event(12, "d", "started"), assigned(13, "d", 1)],
            "generation went back: d was given 1 after 2",
        ),
        (commit(17, 18, "b", 2, {0: 19}), "commit went back: partition 0: b committed 19 after b committed 20"),
        ([observed(17, 18, 0, 10)], "commit went back: partition 0: 10 was found after b committed 20"),
        (commit(17, 18, "b", 2, {0: 21}), "commit ahead of delivery: partition 0: b committed 21"),
        ([observed(17, 18, 1, 11)], "commit ahead of delivery: partition 1: 11 was found"),
        (
            commit(12, 13, "a", 1, {1: 10}),
            "commit of an old generation: a committed {1: 10} in generation 1 after a was given 2",
        ),
        (
            [*TAKEN_OVER, *commit(21, 22, "c", 3, {0: 20})],
            "commit of a fenced instance: c committed {0: 20} after d took over static-1",
        ),
    ],
    ids=lambda value: value.split(":")[0].replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_must_not_happen_is_seen(extra: list[Event], expected: str) -> None:
    found = violations([*RIGHT, *extra], ENDS)
    assert any(line.startswith(expected) for line in found), found


def test_records_that_reach_nobody_are_seen() -> None:
    without = [event for event in RIGHT if not (event.kind == "delivered" and event.partition == 1)]
    assert "record lost: offsets 0..9 of partition 1 reached nobody" in violations(without, ENDS)
    assert violations(RIGHT, {0: 22, 1: 10}) == ["record lost: offsets 20..21 of partition 0 reached nobody"]
    gap = [*RIGHT, revoked(17, "b", 2, 0), assigned(18, "b", 3, 0), delivered(19, "b", 3, 0, 25, 30)]
    assert violations(gap, {0: 30, 1: 10}) == ["record lost: offsets 20..24 of partition 0 reached nobody"]


def test_what_clients_may_do_is_no_violation() -> None:
    # A commit that overlaps another may take effect before it; one of unknown outcome, and one that is sent before the
    # generation ends, prove nothing; a new stint begins at the last commit.
    overlapping = [*RIGHT, *commit(13, 17, "a", -1, {0: 15})]
    assert violations(overlapping, ENDS) == []
    unknown = [*RIGHT, Event(17, "b", "committing", 2, number=9, offsets={0: 3}), Event(18, "b", "refused", number=9)]
    assert violations(unknown, ENDS) == []
    before_its_end = [*RIGHT, *commit(9, 12, "a", 1, {1: 10})]
    assert violations(before_its_end, ENDS) == []
    assert violations([*RIGHT, *TAKEN_OVER], ENDS) == []
    again = [*RIGHT, revoked(20, "a", 2, 1), assigned(21, "a", 3, 1), delivered(22, "a", 3, 1, 5, 10)]
    assert violations(again, ENDS) == []


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    lines = [
        {"time": 5, "member": "a", "event": "delivered", "generation": 1, "partition": 0, "first": 0, "next": 3},
        {"time": 4, "member": "a", "event": "assigned", "generation": 1, "partitions": [0]},
    ]
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (tmp_path / "a.journal").write_bytes(whole + b'{"time": 6, "mem')
    assert read_journals(tmp_path) == [assigned(4, "a", 1, 0), delivered(5, "a", 1, 0, 0, 3)]

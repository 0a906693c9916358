"""The scenarios of resets, their texts and their CSV."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.client.group.offset_resets import (
    PlannedReset,
    Reset,
    ResetKind,
    only_backwards,
    parse_datetime_ms,
    parse_duration_ms,
    plan,
    read_csv,
    write_csv,
)
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import LogBounds, TopicPartition

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
BOUNDS = {P0: LogBounds(10, 100), P1: LogBounds(0, 50)}


def planned(reset: Reset, committed: dict[TopicPartition, int], **more: object) -> dict[TopicPartition, int]:
    return {each.topic_partition: each.new for each in plan(reset, BOUNDS, committed, **more)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        (Reset(ResetKind.TO_EARLIEST), {P0: 10, P1: 0}),
        (Reset(ResetKind.TO_LATEST), {P0: 100, P1: 50}),
        (Reset(ResetKind.TO_OFFSET, 20), {P0: 20, P1: 20}),
        (Reset(ResetKind.TO_OFFSET, 5), {P0: 10, P1: 5}),
        (Reset(ResetKind.TO_OFFSET, 70), {P0: 70, P1: 50}),
        (Reset(ResetKind.SHIFT_BY, -7), {P0: 33, P1: 33}),
        (Reset(ResetKind.SHIFT_BY, -35), {P0: 10, P1: 5}),
        (Reset(ResetKind.SHIFT_BY, 15), {P0: 55, P1: 50}),
        (Reset(ResetKind.TO_CURRENT), {P0: 40, P1: 40}),
        (Reset(ResetKind.FROM_FILE, offsets={P0: 12, P1: 99}), {P0: 12, P1: 50}),
    ],
)
def test_scenarios(reset: Reset, expected: dict[TopicPartition, int]) -> None:
    assert planned(reset, {P0: 40, P1: 40}) == expected


@pytest.mark.parametrize("kind", [ResetKind.TO_DATETIME, ResetKind.BY_DURATION])
def test_a_time_is_the_first_record_at_or_after_it_else_the_end(kind: ResetKind) -> None:
    reset = Reset(kind, 1_000)
    assert reset.timestamp_ms == 1_000
    assert planned(reset, {}, at_time={P0: 17, P1: None}) == {P0: 17, P1: 50}
    assert plan(reset, BOUNDS, {}, {P0: 17, P1: None})[1].note == "no record that late: the end"


def test_to_current_takes_the_end_where_nothing_is_committed_and_comes_back_into_the_log() -> None:
    found = plan(Reset(ResetKind.TO_CURRENT), BOUNDS, {P0: 3})
    assert found == [
        PlannedReset(P0, 3, 10, "3 is before the log's start"),
        PlannedReset(P1, None, 50, "nothing committed: the end"),
    ]
    assert [each.change for each in found] == [7, None]


def test_a_shift_needs_committed_offsets() -> None:
    with pytest.raises(ConfigError, match=r"shift-by -5: nothing is committed for t-1, .* to-earliest"):
        plan(Reset(ResetKind.SHIFT_BY, -5), BOUNDS, {P0: 40})


def test_only_backwards_leaves_out_what_would_go_forward_or_stay() -> None:
    found = [PlannedReset(P0, 5, 4), PlannedReset(P1, 5, 5), PlannedReset(P2, None, 3), PlannedReset(P2, 5, 6)]
    assert only_backwards(found) == found[:1]


@given(
    kind=st.sampled_from([ResetKind.TO_OFFSET, ResetKind.SHIFT_BY, ResetKind.TO_CURRENT]),
    value=st.integers(-(2**63), 2**63),
    start=st.integers(0, 2**62),
    length=st.integers(0, 2**62),
    old=st.integers(0, 2**63),
)
def test_every_plan_lies_in_the_log_and_says_when_it_was_bent(
    kind: ResetKind, value: int, start: int, length: int, old: int
) -> None:
    (found,) = plan(Reset(kind, value), {P0: LogBounds(start, start + length)}, {P0: old})
    assert start <= found.new <= start + length
    wanted = {ResetKind.TO_OFFSET: value, ResetKind.SHIFT_BY: old + value, ResetKind.TO_CURRENT: old}[kind]
    assert bool(found.note) == (found.new != wanted)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P1D", 86_400_000),
        ("PT1H30M", 5_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0s", 0),
        ("P2W", 1_209_600_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1", "P1Y", "P1M", "-PT1H", "an hour", "PT1H 2M"])
def test_bad_durations_show_how_to_write_them(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a duration: write it like P7D"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:01.500", 1_500),
        ("1970-01-01T00:00:01.500Z", 1_500),
        ("1970-01-01T02:00:00.000+02:00", 0),
        ("1970-01-02", 86_400_000),
        ("1700000000000", 1_700_000_000_000),
    ],
)
def test_datetimes(text: str, milliseconds: int) -> None:
    assert parse_datetime_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "latest", "-1", "1969-12-31", "2026-13-01", "yesterday", "9" * 19, "9" * 30])
def test_bad_datetimes_show_how_to_write_them(text: str) -> None:
    with pytest.raises(ConfigError, match=r"neither a date and time such as 2026-01-31T12:00:00\.000"):
        parse_datetime_ms(text)


def test_csv_with_and_without_groups() -> None:
    assert read_csv("t,0,5\nt,1,7\n", "f", ["g"]) == {"g": {P0: 5, P1: 7}}
    assert read_csv("topic,partition,offset\r\n\r\n t , 0 , 5 \r\n", "f", ["g"]) == {"g": {P0: 5}}
    assert read_csv('g,t,0,5\n"h,i",t,0,6\n', "f", ["g", "h,i"]) == {"g": {P0: 5}, "h,i": {P0: 6}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f: no offsets in it; lines are topic,partition,offset"),
        ("t,0", "f, line 1: 't,0' has 2 fields"),
        ("t,0,1\nt,x,1", "f, line 2: the partition 'x' is not a number from 0 to 2147483647"),
        ("t,0,-1", "the offset '-1' is not a number from 0 to"),
        ("t,0,99999999999999999999", "the offset '99999999999999999999' is not a number"),
        ("t,0,1\nt,0,2", "f, line 2: t-0 is named a second time for group 'g'"),
        ("h,t,0,1", "group 'h' is not among those asked for: g"),
        (",0,1", "names no topic"),
        ('"t,0,1', "f, line 1"),
        ("t,0,1\x00", "f, line 1"),
    ],
)
def test_bad_csv_names_the_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_csv(text, "f", ["g"])
    assert problem in str(raised.value)


def test_csv_without_groups_needs_a_single_group() -> None:
    with pytest.raises(ConfigError, match="names no group, and there are several: g, h"):
        read_csv("t,0,1", "f", ["g", "h"])


_offsets = st.dictionaries(
    st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,9}", fullmatch=True), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**63 - 1),
    min_size=1,
)
_group_ids = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1).filter(
    lambda text: text == text.strip()
)


@given(st.dictionaries(_group_ids, _offsets, min_size=1, max_size=3))
def test_csv_comes_back_as_it_went(offsets: dict[str, dict[TopicPartition, int]]) -> None:
    assert read_csv(write_csv(offsets), "f", offsets) == offsets

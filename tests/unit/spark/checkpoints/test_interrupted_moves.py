"""Moves of a checkpoint that are killed at any step, and queries that plan a batch at any step of one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.checkpoints.checkpoint_files import QueryCheckpointError
from spark_kafkalite.spark.checkpoints.checkpoint_moves import carry_out, moved
from spark_kafkalite.spark.reading.offset_ranges import Offsets

from .test_checkpoint_moves import NOW_MS, ZERO, Written, execute, kafka

# All through which a local directory is changed; files are opened under names that nobody reads.
_CALLS = ("mkdir", "link", "replace", "unlink", "fsync")


class Killed(BaseException):
    """The process is gone: nothing catches this."""


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> list[str]:
    """Do something before the system call with this number; return the calls that were made, growing."""
    made: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            made.append(name)
            if len(made) == number:
                act()
            return call(*arguments, **named)

        return counting

    for name in _CALLS:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return made


def kill() -> None:
    raise Killed


class Case:
    """A checkpoint and a move of it: what its last two batches hold before, after, and between the two writes. ``told``
    is what the same move says between them."""

    def __init__(self, positions: dict[int, Offsets], wanted: int, *, planned: bool, told: str = "") -> None:
        self.positions, self.planned, self.told = positions, planned, told
        self.wanted = (kafka(wanted), kafka(wanted))
        self.before = (kafka(8), kafka(20) if planned else None)
        self.between = (kafka(8), kafka(wanted))

    def lay_out(self, root: Path) -> Written:
        written = Written(root).batch(0, kafka(4)).batch(1, kafka(8))
        return written.batch(2, kafka(20), finished=False) if self.planned else written


CASES = {
    "back": Case(
        {0: {ZERO: 5}},
        5,
        planned=False,
        told="offsets/2: batch 2 ends before it begins, as a rewind that was interrupted leaves it; .* --drop-planned",
    ),
    # To a query it is a batch like others, of what was to be skipped.
    "forward": Case({0: {ZERO: 11}}, 11, planned=False, told="offsets/2: batch 2 is planned .* --drop-planned"),
    "back, and a planned batch dropped": Case({0: {ZERO: 5}}, 5, planned=True),
    "a planned batch dropped": Case({}, 8, planned=True),
}


def held(written: Written) -> tuple[Any, Any]:
    """What the last finished batch and the one after it end at."""
    after = written.sources(2)[0] if (written.root / "offsets" / "2").exists() else None
    return written.sources(1)[0], after


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_killed_at_any_step_it_is_as_before_or_as_wanted_or_run_again(case: Case, tmp_path: Path) -> None:
    met = []
    for step in range(1, 100):
        written = case.lay_out(tmp_path / str(step))
        with pytest.MonkeyPatch.context() as patch:
            made = at_step(patch, step, kill)
            try:
                execute(written, case.positions, drop_planned=case.planned)
            except Killed:
                pass
        met.append(held(written))
        assert (written.sources(0), written.open().committed) == ([kafka(4)], 1)
        if len(made) < step:
            break
        written.age()
        drop_planned = case.planned
        if not drop_planned and met[-1] == case.between:
            # The same command says what to do.
            with pytest.raises(QueryCheckpointError, match=case.told):
                execute(written, case.positions)
            drop_planned = True
        execute(written, case.positions, drop_planned=drop_planned, now_ms=NOW_MS + 1)
        assert held(written) == case.wanted, f"killed before step {step}, {made[-1]}"
    # In this order, and nothing else; each was seen.
    assert list(dict.fromkeys(map(str, met))) == list(dict.fromkeys(map(str, (case.before, case.between, case.wanted))))


def test_of_a_query_and_a_move_that_take_the_same_number_one_fails(tmp_path: Path) -> None:
    moved_first = planned_first = 0
    for step in range(1, 100):
        written = Written(tmp_path / str(step)).batch(0, kafka(4)).batch(1, kafka(8))
        checkpoint = written.open()
        change = moved(checkpoint, {0: {TopicPartition("t", 0): 5}}, drop_planned=False)
        query: list[str] = []

        def plan(written: Written = written, query: list[str] = query) -> None:
            # As Spark does: its file appears under the name or, where that is taken, the query fails.
            text = (written.root / "offsets" / "1").read_text().replace("8", "20")
            try:
                with (written.root / "offsets" / "2").open("x") as file:
                    file.write(text)
                query.append("planned")
            except FileExistsError:
                query.append("failed")

        with pytest.MonkeyPatch.context() as patch:
            made = at_step(patch, step, plan)
            try:
                carry_out(checkpoint, change, NOW_MS)
                tool = "moved"
            except QueryCheckpointError as error:
                assert "offsets/2: written by the query meanwhile: it is running" in str(error)
                tool = "failed"
        if len(made) < step:
            break
        if query == ["planned"]:
            planned_first += 1
            assert (tool, held(written)) == ("failed", (kafka(8), kafka(20)))
        else:
            moved_first += 1
            assert (query, tool, held(written)) == (["failed"], "moved", (kafka(5), kafka(5)))
    assert moved_first
    assert planned_first

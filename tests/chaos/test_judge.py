"""The judge is judged: written histories for each rule that it must catch, and near misses that it must not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.history import EVENTS, BadHistory, HistoryWriter, from_json, read_history
from tests.chaos.judge import judge, without_times
from tests.chaos.written import WRITTEN, brokers, logs, readers, writes
from tests.chaos.written.stories import Change, nothing_happens, sound
from tests.paths import PROJECT
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(("change", "broken"), [pytest.param(*each, id=each[0].__name__) for each in WRITTEN])
def test_written_history(change: Change, broken: set[str]) -> None:
    story = sound()
    change(story)
    verdict = judge(story.events())
    assert verdict.rules == broken, verdict.text()


# What they show is how long something took, and nothing else.
SLOW = {
    brokers.an_isr_stays_short,
    brokers.a_loop_stands_still,
    brokers.a_partition_stands_still,
    brokers.acknowledgements_stay_slow,
    brokers.a_producer_does_not_resume,
    brokers.something_takes_too_long,
}


@pytest.mark.parametrize(("change", "broken"), [pytest.param(*each, id=each[0].__name__) for each in WRITTEN])
def test_written_history_without_times(change: Change, broken: set[str]) -> None:
    story = sound()
    change(story)
    verdict = judge(map(without_times, story.events()))
    assert verdict.rules == (set() if change in SLOW else broken), verdict.text()


def test_every_rule_is_broken_by_some_history() -> None:
    broken = set().union(*(rules for _, rules in WRITTEN))
    assert broken == {"H1", *(f"C{number}" for number in range(1, 16))}


def test_a_history_comes_back_from_its_file(tmp_path: Path) -> None:
    story = sound()
    # Together they have every kind of event.
    for change in (
        brokers.an_ephemeral_node_has_no_owner,
        brokers.a_leader_has_another_view,
        brokers.a_broker_complains,
        brokers.a_file_is_left_behind,
        brokers.a_client_sees_an_error,
        brokers.files_stay_open,
        brokers.something_is_fast_enough,
        readers.somebody_asked_for_a_rewind,
        readers.the_lease_was_skipped,
        logs.files_could_not_be_read,
    ):
        change(story)
    events = story.events()
    assert {type(event) for event in events} == set(EVENTS.values())
    with HistoryWriter(tmp_path / "history") as writer:
        writer.note(*events)
    found = list(read_history([tmp_path / "history"]))
    assert [event.line for event in found] == list(range(1, len(events) + 1))
    for event in found:
        event.line = 0
    assert found == events


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"what":"send"}', '{"what":"nothing"}', '{"what":"poll","records":3}']
)
def test_a_bad_line_is_no_event(text: str) -> None:
    with pytest.raises(BadHistory, match="no event of a history"):
        from_json(text)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (nothing_happens, 0, "nothing is wrong"),
        (
            writes.acknowledged_before_replication,
            1,
            "C2: rows-0: broker 1 has lost 2 of 10 acknowledged records, the first p-8",
        ),
        (None, 2, "cannot be judged: "),
    ],
)
def test_the_program(change: Change | None, code: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "history"
    if change is not None:
        story = sound()
        change(story)
        with HistoryWriter(path) as writer:
            writer.note(*story.events())
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.judge", str(path)],
        cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr

"""What the load job tells of a run."""

import re
from pathlib import Path
from typing import Any

import click
import pytest

from spark_kafkalite.jobs.load.load_options import LoadOptions, TopicOptions
from spark_kafkalite.jobs.load.load_report import check_metrics_file, report
from spark_kafkalite.manifests.manifest import LostRange, RecreatedTopic
from tests.paths import PROJECT

NOTHING: dict[str, Any] = {
    "destination": "file:///d",
    "recovered_files": 0,
    "renamed_files": 0,
    "discarded_runs": [],
    "manifest": "m.json",
    "files": 2,
    "records": 8,
    "lost": [],
    "recreated": [RecreatedTopic("t", "A", "B", {0: 3}).document()],
    "adopted_ids": {},
    "skipped": [],
    "late_records": 0,
    "quarantined_records": 0,
    "event_time_fallbacks": 0,
    "early_event_times": 0,
    "completed": [],
    "unmatched": [],
    "more": False,
    "tables": {},
    "not_checkpointed": {},
    "topics": {},
    "records_without_timestamp": 0,
}


def test_a_topic_created_again_is_told_with_the_offset_that_it_is_loaded_from() -> None:
    assert "(id A, now B); loading the new one from offset 0\n" in report(NOTHING)


def test_what_a_topic_created_again_no_longer_holds_is_told() -> None:
    lost = [LostRange("other", 2, 1, 4).document(), LostRange("t", 1, 0, 15).document()]
    told = report({**NOTHING, "lost": lost})
    assert "(id A, now B); loading the new one from offset 0, but t-1 from offset 15\n" in told
    assert "WARNING: t-1: 15 offsets, 0 to 14, were deleted from the log before they were loaded" in told


def test_options_of_topics_that_are_not_there_are_told() -> None:
    options = LoadOptions("b:1", ("events",), "us-.*", by_pattern=(("evnts", TopicOptions()), ("ev.*", TopicOptions())))
    assert options.unmatched(("events",)) == ('[topics."evnts"] of --topic-config', "--topic-pattern us-.*")
    assert options.unmatched(("events", "evnts", "us-1")) == ()
    told = report({**NOTHING, "unmatched": ["--topic-pattern us-.*"]}).splitlines()
    assert "WARNING: --topic-pattern us-.*: matches no topic that is loaded, and has no effect" in told


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nowhere/f.prom", "is no directory"),
        ("", "is a directory"),
    ],
)
def test_a_metrics_file_that_cannot_be_is_told_before_the_run(tmp_path: Path, path: str, problem: str) -> None:
    with pytest.raises(click.BadParameter, match=problem):
        check_metrics_file(str(tmp_path / path))
    check_metrics_file(str(tmp_path / "f.prom"))


def test_records_without_a_place_and_without_their_time_are_told() -> None:
    told = report({**NOTHING, "quarantined_records": 3, "event_time_fallbacks": 4, "early_event_times": 5})
    assert "WARNING: 3 records cannot be decoded; they are under _kafkalite/quarantine\n" in told
    assert "WARNING: 4 records have no --event-time that can be read, and lie by their own timestamp\n" in told
    assert "WARNING: 5 records have an --event-time before May 1970: a number is milliseconds since the" in told


def test_the_pages_name_the_command_as_it_can_be_run() -> None:
    root = PROJECT
    pages = (root / "README.md", *(root / "docs").glob("*.md"))
    found = [
        (page.name, before)
        for page in pages
        for before, _ in re.findall(r"(.{0,19})hadoop_load (--|\.\.\.)", page.read_text())
    ]
    assert found and [each for each in found if not each[1].endswith("kafkalite jobs run ")] == []

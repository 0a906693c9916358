"""The table of rows in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.judge import judge
from tests.chaos.report import NoTable, line_of, update_report
from tests.chaos.written import writes
from tests.chaos.written.stories import sound

_PAGE = "# Page\n\nBefore.\n\n<!-- rows of faults: begin -->\n<!-- rows of faults: end -->\n\nAfter.\n"


def test_rows_stand_in_their_order_and_replace_themselves(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(_PAGE)
    story = sound()
    story.fault.longest_gap_s, story.fault.settle_s = 4.0, 2.25
    good = judge(story.events())
    update_report(page, [line_of("21a", "damage", 7, good, ""), line_of("3", "chase", 7, good, "")])
    lost = sound()
    writes.acknowledged_before_replication(lost)
    update_report(page, [line_of("3", "chase", 8, judge(lost.events()), ""), line_of("10", "cut", 8, good, "it broke")])
    text = page.read_text()
    assert text.startswith("# Page\n\nBefore.\n\n<!-- rows") and text.endswith("end -->\n\nAfter.\n")
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert rows == [
        "| 3 | chase | 8 | 1.0 (nothing) | 10 | 6 | 0 | 0.0 | broken: C12 C2 |",
        "| 10 | cut | 8 | 1.0 of 4.0 (nothing) | 10 | 0 | 0 | 2.2 | not played to its end |",
        "| 21a | damage | 7 | 1.0 of 4.0 (nothing) | 10 | 0 | 0 | 2.2 | nothing is wrong |",
    ]


def test_a_page_needs_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    with pytest.raises(NoTable, match="needs the lines"):
        update_report(page, [])
    assert page.read_text() == "# Page\n"

"""Tables at terminals of different widths, and in a pipe."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from rich.progress import Progress, TaskID

from spark_kafkalite.cli.output import print_table, progress

HEADINGS = ("GROUP", "LAG", "CONSUMER-ID")
ROW = ("billing", 12345, "reader-7a650722-3380-42bc-b0dc-af34516dbb44")
PLAIN = (
    "GROUP    LAG    CONSUMER-ID\nbilling  12345  reader-7a650722-3380-42bc-b0dc-af34516dbb44\n"
)  # fmt: skip


@pytest.fixture
def at_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def shown(width: int | None, **options: object) -> str:
        if width is not None:
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
            monkeypatch.setenv("COLUMNS", str(width))
        print_table(HEADINGS, [ROW], **options)  # type: ignore[arg-type]
        return str(capsys.readouterr().out)

    return shown


def test_a_pipe_gets_aligned_columns(at_width) -> None:  # type: ignore[no-untyped-def]
    assert at_width(None) == PLAIN
    assert at_width(None, shortened=("CONSUMER-ID",)) == PLAIN


def test_a_wide_terminal_shows_everything(at_width) -> None:  # type: ignore[no-untyped-def]
    assert ROW[2] in at_width(100, shortened=("CONSUMER-ID",))


def test_a_narrow_terminal_cuts_only_what_may_be_cut(at_width) -> None:  # type: ignore[no-untyped-def]
    shown = at_width(44, shortened=("CONSUMER-ID",))
    assert "billing" in shown and "12345" in shown and "LAG" in shown
    assert "…" in shown and ROW[2] not in shown
    assert len(shown.rstrip().splitlines()) == len(at_width(100, shortened=("CONSUMER-ID",)).rstrip().splitlines())


def test_a_terminal_too_narrow_for_any_table_gets_what_a_pipe_gets(at_width) -> None:  # type: ignore[no-untyped-def]
    assert at_width(25, shortened=("CONSUMER-ID",)) == PLAIN


def test_without_columns_to_cut_cells_are_folded(at_width) -> None:  # type: ignore[no-untyped-def]
    shown = at_width(40)
    assert "…" not in shown and "reader-7a65" in shown


def test_a_progress_bar_ends_at_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    update = Progress.update

    def note(self: Progress, task: TaskID, **given: Any) -> None:
        shown.append(given["completed"])
        update(self, task, **given)

    monkeypatch.setattr(Progress, "update", note)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for total in (5, None):
        with progress("reading", total, "records") as advance:
            for _ in range(3):
                advance(2)
    assert shown == [2, 4, 5, 2, 4, 6]

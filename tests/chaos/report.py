"""The table of rows that were played, in a page of the documents: one line a row, kept between two marks. A row that is
played again replaces its line; others stay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.judge import FaultFigures, Verdict

_BEGIN: Final = "<!-- rows of faults: begin -->"
_END: Final = "<!-- rows of faults: end -->"
_COLUMNS: Final = (
    "row", "what is done", "seed", "longest gap, of what is allowed (s)", "acknowledged", "lost", "doubled",
    "in sync again after (s)", "verdict",
)  # fmt: skip


class NoTable(ValueError):
    """A page has no place for the table; the message names the page and the marks."""


class Line(NamedTuple):
    """A line of the table, cell by cell."""

    label: str
    cells: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"| {' | '.join((self.label, *self.cells))} |"


def line_of(label: str, name: str, seed: int, verdict: Verdict, problem: str) -> Line:
    """Return the line of a row that was played and judged; ``problem`` says why it was not played to its end."""
    counts = {rule: sum(each.count for each in verdict.violations if each.rule == rule) for rule in ("C2", "C4")}
    by_election = verdict.figures["lost by unclean elections"]
    lost = f"{counts['C2']}" + (f" and {by_election} by unclean elections" if by_election else "")
    verdict_text = f"broken: {' '.join(sorted(verdict.rules))}" if verdict.violations else "nothing is wrong"
    return Line(
        label,
        (
            name,
            str(seed),
            _gap_text(verdict.faults),
            str(verdict.figures["acknowledged"]),
            lost,
            str(counts["C4"]),
            f"{max((fault.settle_s for fault in verdict.faults), default=0.0):.1f}",
            "not played to its end" if problem else verdict_text,
        ),
    )


def _gap_text(faults: Iterable[FaultFigures]) -> str:
    """Return the gap that comes nearest to its bound; without any bound the longest one."""
    bounded = [(fault.longest_gap_s / fault.bound_s, fault) for fault in faults if fault.bound_s]
    if bounded:
        _, fault = max(bounded, key=lambda each: each[0])
        return f"{fault.longest_gap_s:.1f} of {fault.bound_s:.1f} ({fault.name})"
    longest = max(faults, key=lambda fault: fault.longest_gap_s, default=None)
    return "" if longest is None else f"{longest.longest_gap_s:.1f} ({longest.name})"


def update_report(page: Path, lines: Iterable[Line]) -> None:
    """Put lines into a page's table. Raises NoTable."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    table, end, after = rest.partition(_END)
    if not begin or not end:
        raise NoTable(f"{page} has no place for the table: it needs the lines {_BEGIN} and {_END}")
    found = {line.label: line for line in map(_parsed, table.splitlines()) if line is not None}
    found.update((line.label, line) for line in lines)
    rows = [found[label].text for label in sorted(found, key=_order)]
    header = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    page.write_text(f"{before}{begin}\n\n" + "\n".join([*header, *rows]) + f"\n\n{end}{after}", encoding="utf-8")


def _parsed(text: str) -> Line | None:
    label, *cells = (cell.strip() for cell in text.strip().strip("|").split("|"))
    return Line(label, tuple(cells)) if re.fullmatch(r"\d+[a-z]?", label) else None


def _order(label: str) -> tuple[int, str]:
    return int(re.sub(r"\D", "", label)), label

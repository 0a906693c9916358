"""What the demo prints: steps with their progress, checks that can fail, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


class CheckFailed(Exception):
    """A step has failed checks; the steps after it would rest on bad ground."""


@dataclass(frozen=True)
class Check:
    step: str
    what: str
    passed: bool
    found: str


class Report:
    """Collects checks and figures, step by step."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            # In a pipe nothing may be cut to 80 columns.
            self.console.width = 200
        self.checks: list[Check] = []
        self._step = ""
        self._started = time.monotonic()
        self._figures: list[tuple[str, str]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Run one step: its title before, its time after. Raises CheckFailed when one of its checks failed."""
        self._step = title
        first_check = len(self.checks)
        started = time.monotonic()
        self.console.print(f"\n[bold]{title}[/bold]  (at {started - self._started:.0f} s)")
        yield
        self.figure(f"{title.split('.')[0]}. took", f"{time.monotonic() - started:.1f} s")
        if not all(check.passed for check in self.checks[first_check:]):
            raise CheckFailed(title)

    def say(self, text: str) -> None:
        """Print a line of progress."""
        self.console.print(f"   {text}", markup=False, soft_wrap=True)

    def figure(self, name: str, value: str) -> None:
        """Keep a figure for the table at the end."""
        self._figures.append((name, value))

    def check(self, what: str, passed: bool, found: str) -> bool:
        """Note the outcome of a check and print it."""
        self.checks.append(Check(self._step, what, passed, found))
        colour, word = ("green", "ok    ") if passed else ("bold red", "FAILED")
        self.console.print(f"   [{colour}]{word}[/{colour}]", end=" ")
        self.console.print(f"{what}: {found}", markup=False, soft_wrap=True)
        return passed

    def check_same_rows(self, what: str, expected: list[int], found: list[int]) -> bool:
        """Check that ``found`` holds exactly the expected row numbers, each once, in any order."""
        found_once = set(found)
        missing, unknown = set(expected) - found_once, found_once - set(expected)
        repeated = len(found) - len(found_once)
        detail = f"{len(found)} rows, {len(found_once)} distinct, {len(missing)} missing, {len(unknown)} unknown"
        return self.check(what, not missing and not unknown and not repeated, f"{detail}, {repeated} repeated")

    def finish(self, paths: dict[str, str]) -> bool:
        """Print the table of checks and figures and the paths to look at; return whether everything passed."""
        table = Table(title="spark-kafkalite demo", title_justify="left")
        for heading in ("step", "check", "found", ""):
            table.add_column(heading, overflow="fold")
        for check in self.checks:
            mark = "[green]ok[/green]" if check.passed else "[bold red]FAILED[/bold red]"
            table.add_row(check.step.split(".")[0], check.what, check.found, mark)
        figures = Table(title="figures", title_justify="left", show_header=False)
        for name, value in self._figures:
            figures.add_row(name, value)
        where = Table(title="to look at", title_justify="left", show_header=False)
        for name, path in paths.items():
            where.add_row(name, path)
        for part in (table, figures, where):
            self.console.print(part)
        failed = sum(not check.passed for check in self.checks)
        verdict = f"{failed} of {len(self.checks)} checks FAILED" if failed else f"all {len(self.checks)} checks passed"
        self.console.print(f"{verdict} in {time.monotonic() - self._started:.0f} s")
        return failed == 0

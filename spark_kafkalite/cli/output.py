"""What commands print: plain text in a pipe, tables and progress at a terminal, JSON when asked.

rich is loaded only when there is a terminal to draw on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from spark_kafkalite.printable import printable, printable_json, printable_lines

# A cut column must still tell one thing from another.
_CUT_WIDTH: Final = 8


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    import json  # most commands print none

    click.echo(printable_json(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, shortened: Collection[str] = ()) -> None:
    """Print rows under headings: a table at a terminal, aligned columns in a pipe.

    Where a terminal is too narrow, cells are folded; or, with ``shortened``, the columns under these headings are cut,
    and where that does not help either the rows are printed as in a pipe.
    """
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(headings), *texts]) for column in range(len(headings))]
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console()
        cut = [heading in shortened for heading in headings]
        least = sum(_CUT_WIDTH if each else width for each, width in zip(cut, widths, strict=True)) + 3 * len(headings)
        if not shortened or least <= console.width:
            table = Table(box=box.SIMPLE_HEAD)
            for heading, each in zip(headings, cut, strict=True):
                table.add_column(heading, overflow="ellipsis" if each else "fold", no_wrap=bool(shortened) and not each)
            for row in texts:
                # As Text, or square brackets in a cell would be markup.
                table.add_row(*map(Text, row))
            console.print(table)
            return
    for line in [list(headings), *texts]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_rows(rows: Sequence[Mapping[str, object]]) -> None:
    """Print the rows of a command's JSON as a table: names in capitals are the headings, and None is ``-``."""
    if rows:
        headings = [name.upper().replace("_", "-") for name in rows[0]]
        print_table(headings, [["-" if cell is None else cell for cell in row.values()] for row in rows])


def warn(message: str) -> None:
    """Print a warning on stderr."""
    click.echo(f"kafkalite: warning: {printable(message)}", err=True)


def said(text: str) -> None:
    """Print a result on stderr, so that stdout holds tables and CSV only."""
    click.echo(f"kafkalite: {printable(text)}", err=True)


def echo(text: str) -> None:
    """Print lines that name what others chose, as groups and clients, with control characters escaped."""
    click.echo(printable_lines(text))


@contextlib.contextmanager
def progress(what: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr while the block runs, when that is a terminal; gives a function that adds to it.

    ``total`` None shows a count and a rate only. ``unit`` is "bytes" or the name of what is counted.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f} {unit}/s")

    columns: list[ProgressColumn] = [TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(), DownloadColumn() if unit == "bytes" else MofNCompleteColumn()]
    else:
        columns.append(TextColumn("{task.completed:,.0f} " + unit))
    columns += [Rate(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as bar:
        task = bar.add_task(what, total=total)
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            # A file may grow while it is read, and a poll may return more records than were asked for.
            bar.update(task, completed=done if total is None else min(done, total))

        yield advance

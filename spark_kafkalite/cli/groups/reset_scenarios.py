"""Options for the new positions of offsets, and for a reset or a dry run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from spark_kafkalite.cli.output import said
from spark_kafkalite.client.group.offset_resets import Reset, ResetKind, parse_datetime_ms, parse_duration_ms
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


def scenario_options(function: Function) -> Function:
    """Add the scenarios except ``--from-file``. The user must give exactly one scenario (:func:`chosen_reset`)."""
    options = (
        click.option("--to-earliest", is_flag=True, help="To the first record that the log has."),
        click.option("--to-latest", is_flag=True, help="To the end: only new records."),
        click.option(
            "--to-current",
            is_flag=True,
            help="To the present offset, or to the nearest end of the log; without an offset to the log's end.",
        ),
        click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset."),
        click.option("--shift-by", type=int, metavar="N", help="By N, back if negative."),
        click.option(
            "--to-datetime",
            metavar="WHEN",
            help="To the first record at or after: 2026-01-31T12:00:00.000 (UTC without a zone), or ms since 1970.",
        ),
        click.option("--by-duration", metavar="HOW_LONG", help="To this time before now: P7D, PT1H30M, or 90m."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def chosen_reset(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    from_file: str | None = None,
) -> Reset:
    """Return the given scenario. Raises UsageError for none or several, or for an invalid text."""
    given = {
        ResetKind.TO_EARLIEST: to_earliest,
        ResetKind.TO_LATEST: to_latest,
        ResetKind.TO_CURRENT: to_current,
        ResetKind.TO_OFFSET: to_offset is not None,
        ResetKind.SHIFT_BY: shift_by is not None,
        ResetKind.TO_DATETIME: to_datetime is not None,
        ResetKind.BY_DURATION: by_duration is not None,
        ResetKind.FROM_FILE: from_file is not None,
    }
    kinds = [kind for kind, is_given in given.items() if is_given]
    if len(kinds) > 1:
        raise click.UsageError(f"{' and '.join(f'--{kind.value}' for kind in kinds)}: name one scenario only")
    if not kinds:
        raise click.UsageError(f"name a new position: one of {', '.join(f'--{kind.value}' for kind in given)}")
    (kind,) = kinds
    try:
        if to_datetime is not None:
            return Reset(kind, parse_datetime_ms(to_datetime))
        if by_duration is not None:
            return Reset(kind, max(0, SYSTEM_CLOCK.wall_ms() - parse_duration_ms(by_duration)))
    except ConfigError as error:
        raise click.UsageError(f"--{kind.value}: {error}") from None
    return Reset(kind, to_offset if to_offset is not None else shift_by or 0)


def execute_options(function: Function) -> Function:
    """Add --dry-run and --execute."""
    function = click.option("--execute", is_flag=True, help="Do it. Without it, only show what would be done.")(
        function
    )
    return click.option("--dry-run", is_flag=True, help="Only show what would be done (the default).")(function)


def check_execute(dry_run: bool, execute: bool) -> None:
    """Raise UsageError if both are given."""
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute exclude each other")


def said_dry_run() -> None:
    """Print that the dry run has changed nothing."""
    said("nothing was changed: this was a dry run, --execute does it")

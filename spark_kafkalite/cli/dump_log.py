"""``kafkalite dump-log``: shows the files of a log and checks them thoroughly (``log_check``); repairs on request.

The command reports damage with file and position, and then returns exit code 1. The newest segment of a running or
crashed broker has its indexes only in memory, and may end in the middle of a batch. The broker cuts such an end when it
starts.

``--repair`` (``log.loading.repair``) is for stopped brokers. It prints what it will cut, asks for confirmation, and
keeps the cut bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from spark_kafkalite.cli.log_check import (
    OFFSET_CHECKPOINTS,
    SEGMENT_SUFFIXES,
    SMALL_FILES,
    UNKNOWN_SUFFIX,
    BatchSpan,
    Printer,
    Report,
    check_file,
)
from spark_kafkalite.cli.output import print_json, progress
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import LEADER_EPOCH_FILE, LOCK_FILE
from spark_kafkalite.log.loading.loader import topic_partition_of
from spark_kafkalite.log.loading.repair import Cut, plan_repair
from spark_kafkalite.log.loading.repair import repair as repair_log
from spark_kafkalite.records.kernel import read_header
from spark_kafkalite.records.layout import HEADER_BYTES, BatchHeader

_EPILOG = """\b
Examples:
  kafkalite dump-log kafkalite-data/events-0
  kafkalite dump-log --print-data-log kafkalite-data/events-0/00000000000000000000.log
  kafkalite dump-log --check kafkalite-data
  kafkalite dump-log --repair kafkalite-data/events-0
"""


@click.command("dump-log", epilog=_EPILOG)
@click.argument("paths", nargs=-1, metavar="[FILE_OR_DIRECTORY]...")
@click.option("--files", "files", multiple=True, metavar="FILE[,FILE]", help="Kafka's way to name the files.")
@click.option("--print-data-log", is_flag=True, help="Show the records too, keys and values as text.")
@click.option("--deep-iteration", is_flag=True, hidden=True, help="Kafka's option; the check is always deep.")
@click.option("--check", is_flag=True, help="Show only damage and one line per file.")
@click.option("--repair", is_flag=True, help="Cut damaged ends off the named logs, after asking.")
@click.option("--yes", is_flag=True, help="With --repair: do not ask before a torn tail is cut.")
@click.option(
    "--force",
    is_flag=True,
    help="With --yes: also cut damaged batches that are not torn, and sound batches behind damage.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, for programs.")
def command(
    paths: tuple[str, ...],
    files: tuple[str, ...],
    print_data_log: bool,
    deep_iteration: bool,
    check: bool,
    repair: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Show and check the files of a log: segments, indexes, snapshots, checkpoints.

    A directory stands for all such files in it, a broker's log directory for its checkpoints and all logs in it. The
    command changes files only with --repair. Exit code 1 means that a file is damaged.

    --repair finds the first damaged batch of each log and prints which offsets a cut would remove: a torn tail, a batch
    whose bytes have changed, or sound batches as well. It keeps the cut bytes in a .torn file next to the segment. It
    does nothing while a broker uses the directory.
    """
    named = [Path(path) for path in (*paths, *(name for text in files for name in text.split(",")))]
    if not named:
        raise click.UsageError("name the files or directories to check")
    if repair:
        return repair_logs(named, yes=yes, force=force)
    if yes or force:
        raise click.UsageError("--yes and --force are for --repair")
    found = list(log_files(named))
    if not found:
        raise click.ClickException(f"no log files in {', '.join(map(str, named))}")
    printer = Printer(as_json=as_json, details=not check, records=print_data_log and not check)
    damaged = 0
    # One segment's batches are kept for the indexes that follow it in the list.
    spans: dict[Path, list[BatchSpan]] = {}
    total = sum(path.lstat().st_size for path in found)
    with progress("checking", total, "bytes") as advance:
        for path in found:
            report = check_file(path, printer, spans, advance)
            damaged += bool(report.damage)
            _print_report(report, printer)
    return 1 if damaged else 0


def log_files(named: Iterable[Path]) -> Iterator[Path]:
    """Yield the files to check: the named files, and in named directories the files of a log, segments first.

    A broker's log directory has the files of all its logs.
    """
    for path in named:
        if path.is_dir():
            wanted = (*SEGMENT_SUFFIXES, UNKNOWN_SUFFIX)
            inside = [each for each in path.iterdir() if each.suffix in wanted or each.name in SMALL_FILES]
            # By base offset, and there the segment before its indexes.
            yield from sorted(inside, key=lambda each: (each.stem, each.suffix != ".log", each.name))
            logs = {key: each for each in path.iterdir() if (key := topic_partition_of(each.name)) and each.is_dir()}
            for key in sorted(logs):
                # Links are reported and not followed.
                yield from (logs[key],) if logs[key].is_symlink() else log_files((logs[key],))
        elif path.exists():
            yield path
        else:
            raise click.ClickException(f"{path}: no such file or directory")


def _print_report(report: Report, printer: Printer) -> None:
    if printer.as_json:
        print_json(
            {
                "type": "file",
                "path": str(report.path),
                "batches": report.batches,
                "records": report.records,
                "entries": report.entries,
                "damage": report.damage,
            }
        )
        return
    for damage in report.damage:
        click.echo(f"DAMAGED {report.path}: {damage}")
    if report.unknown:
        click.echo(f"UNKNOWN {report.path}: not checked")
    elif not report.damage:
        what = f"{report.batches} batches, {report.records} records" if report.path.suffix == ".log" else ""
        if report.path.suffix in SEGMENT_SUFFIXES[1:] or report.path.name in (LEADER_EPOCH_FILE, *OFFSET_CHECKPOINTS):
            what = f"{report.entries} entries"
        click.echo(f"OK {report.path}{': ' + what if what else ''}")


# Repair -------------------------------------------------------------------------------------------------------------


def repair_logs(named: Iterable[Path], *, yes: bool, force: bool) -> int:
    """Print what is damaged, and cut the damaged ends of logs. Return 1 if a log stays damaged, otherwise 0."""
    left = 0
    for path in named:
        directory = path if path.is_dir() else path.parent
        if not list(directory.glob("*.log")):
            raise click.ClickException(f"{path}: no log lies there; name the directory of a partition")
        fs = OsFs()
        # A copy of a log outside of a log directory has no lock file, and no broker uses it.
        lock_path = directory.absolute().parent / LOCK_FILE
        lock = fs.lock(str(lock_path)) if lock_path.exists() else None
        if lock is None and lock_path.exists():
            raise click.ClickException(f"a broker uses {lock_path.parent} (it holds {LOCK_FILE}): stop it first")
        try:
            cut = plan_repair(fs, os.fspath(directory.absolute()))
            if cut is None:
                click.echo(f"OK {directory}: every batch is sound, nothing to cut")
            elif _agreed(fs, cut, yes=yes, force=force):
                kept = repair_log(fs, cut)
                click.echo(f"CUT {cut.path} at position {cut.position}; the log ends at offset {cut.end_offset}")
                for each in kept:
                    click.echo(f"what was cut is in {each}")
            else:
                left += 1
        finally:
            if lock is not None:
                lock.release()
    return 1 if left else 0


def _damaged_header(fs: Fs, cut: Cut) -> BatchHeader | None:
    """Return the header of the first batch to be cut, None if it is not readable."""
    try:
        header = read_header(fs.open(cut.path).pread(HEADER_BYTES, cut.position))
    except KafkaliteError:
        return None
    # The checksum does not cover the base offset, which may be damaged.
    return header if header.base_offset >= cut.end_offset and header.last_offset_delta >= 0 else None


def _agreed(fs: Fs, cut: Cut, *, yes: bool, force: bool) -> bool:
    click.echo(f"DAMAGED {cut.path} at position {cut.position}: {cut.reason}")
    later = f" and {len(cut.later_segments)} later segments" if cut.later_segments else ""
    click.echo(f"to be cut: {cut.cut_bytes} bytes{later}; the log would end at offset {cut.end_offset}")
    header = _damaged_header(fs, cut)
    is_whole = header is not None and header.size_bytes <= cut.cut_bytes
    if header is not None:
        holds = f"offsets {header.base_offset} to {header.last_offset}, {header.record_count} records"
        how = "all of its bytes exist, so it is DAMAGED, NOT TORN" if is_whole else "its end is missing"
        click.echo(f"the batch there holds, by its header, {holds}; {how}")
    if cut.sound_offsets is not None:
        first, last = cut.sound_offsets
        click.echo(
            f"THIS IS NOT A TORN TAIL: {cut.sound_batches} sound batches with {cut.sound_records} records follow the "
            f"damage, offsets {first} to {last}; a cut takes them too"
        )
    if yes and not force and (is_whole or cut.sound_offsets is not None):
        click.echo("left as it is: --yes is for torn tails; add --force to cut whole batches")
        return False
    if yes:
        return True
    try:
        return click.confirm("Cut?", default=False)
    except click.Abort:
        click.echo("left as it is: no answer; give --yes to cut without asking")
        return False

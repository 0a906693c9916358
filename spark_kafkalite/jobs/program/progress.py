"""Shows the progress of a run while Spark works on it: a bar at a terminal, a line now and then in a log.

Spark's executors report with their heartbeats how much their tasks have written so far. A thread reads these figures
from the driver's store. The tasks write the plan's records, so the plan gives the total.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ASKED_EVERY_S: Final = 1.0
_SAID_EVERY_S: Final = 30.0
# What is only estimated is not said to be done.
_ALMOST: Final = 0.99


@contextmanager
def shown_progress(
    spark: SparkSession,
    what: str,
    total_records: int,
    total_bytes: float,
    *,
    by_bytes: bool = False,
    stream: TextIO | None = None,
) -> Iterator[None]:
    """Show on ``stream`` (stderr) how many of so many records are written, while the block runs.

    ``by_bytes``: Spark does not write records; then the progress is estimated from its bytes.
    """
    out = sys.stderr if stream is None else stream
    show = _bar(what, total_records) if out.isatty() else _lines(what, total_records, total_bytes, out)
    ended = threading.Event()
    by_stage = written(spark)
    before = _done(by_stage, total_records, total_bytes, by_bytes=by_bytes)

    def ask() -> None:
        with show as say:
            while not ended.wait(_ASKED_EVERY_S):
                by_stage.update(written(spark))
                say(_done(by_stage, total_records, total_bytes, by_bytes=by_bytes) - before)

    thread = threading.Thread(target=ask, name="kafkalite-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def written(spark: SparkSession) -> dict[int, tuple[int, int]]:
    """Return how many records and bytes each running stage has written, by the executors' last heartbeats."""
    from py4j.protocol import Py4JError

    try:
        stages: Any = spark._jsc.sc().statusStore().activeStages()
        found = (stages.apply(number) for number in range(stages.size()))
        return {int(stage.stageId()): (int(stage.outputRecords()), int(stage.outputBytes())) for stage in found}
    except (Py4JError, AttributeError, TypeError):
        # The store is not part of Spark's public interface; a run does not fail for it.
        return {}


def _done(by_stage: Mapping[int, tuple[int, int]], total_records: int, total_bytes: float, *, by_bytes: bool) -> int:
    if not by_bytes:
        return sum(records for records, _ in by_stage.values())
    share = sum(size_bytes for _, size_bytes in by_stage.values()) / total_bytes if total_bytes else 0.0
    return int(min(_ALMOST, share) * total_records)


@contextmanager
def _bar(what: str, total_records: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total_records)
        yield lambda done: progress.update(task, completed=min(done, total_records))


@contextmanager
def _lines(what: str, total_records: int, total_bytes: float, out: TextIO) -> Iterator[Callable[[int], None]]:
    began_s = said_s = time.monotonic()

    def say(done: int) -> None:
        nonlocal said_s
        now_s = time.monotonic()
        if now_s - said_s < _SAID_EVERY_S:
            return
        said_s = now_s
        print(line(what, done, total_records, total_bytes, now_s - began_s), file=out, flush=True)

    yield say


def line(what: str, done: int, total_records: int, total_bytes: float, seconds: float) -> str:
    """Return the line of a log: how much of how much, how fast, and how long it may take."""
    # A task that Spark repeats counts twice.
    done = min(done, total_records)
    share = done / total_records if total_records else 1.0
    megabytes, total_megabytes = share * total_bytes / 1e6, total_bytes / 1e6
    left = f", about {seconds * (1 - share) / share:,.0f} s left" if share else ""
    return (
        f"{what}: {done:,} of {total_records:,} records, about {megabytes:,.1f} of {total_megabytes:,.1f} MB, "
        f"{megabytes / seconds if seconds else 0:,.1f} MB/s{left}"
    )

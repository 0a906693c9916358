"""Seconds until a small read runs: ours beside Spark's JVM connector and beside a Python source that does nothing.

What the empty source takes is Spark's share: its Python processes, the plan, the checkpoint. Ours above that is what we
import, the connections that we open and what we ask the brokers, and is wanted below 0.3 s. Medians of rounds taken in
turn, after one that does not count: `.load()`, the start of a stream until its first batch is done, and a whole
AvailableNow run over 4,000 rows.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator

from bench.measurement import Row
from bench.spark_read_write import EMPTY_SOURCE, JVM, Bench, empty_options, fill

ROWS = 4_000
_NUMBERS = itertools.count()


def rows(quick: bool) -> Iterator[Row]:
    """Measure the three starts."""
    with StartBench(3 if quick else 9) as bench:
        yield from bench.starts()


class StartBench(Bench):
    """The same brokers and session, and a small topic."""

    def starts(self) -> Iterator[Row]:
        """Measure each start for ours, the JVM connector and the empty source."""
        for bootstrap in (self.ours, self.theirs):
            fill(bootstrap, "small", ROWS, 100, "none")
        sources = {
            "kafkalite": {"kafka.bootstrap.servers": self.ours, "subscribe": "small", "startingOffsets": "earliest"},
            "kafka": {"kafka.bootstrap.servers": self.theirs, "subscribe": "small", "startingOffsets": "earliest"},
            "empty_arrow": empty_options(ROWS, 100),
        }
        for what, measure in (
            ("Spark load()", self._load),
            ("Spark stream, start until the first batch is done", self._first_batch),
            (
                f"Spark AvailableNow run over {ROWS:,} rows",
                lambda source, options: self.stream(source, options, ROWS),
            ),
        ):
            ours, theirs, nothing = self.in_turn(
                *(lambda source=source, measure=measure: measure(source, sources[source]) for source in sources)
            )
            above = [mine - empty for mine, empty in zip(ours, nothing, strict=True)]
            yield Row(what, "s", ours, theirs, JVM, higher_is_better=False)
            yield Row(f"{what}: above {EMPTY_SOURCE}", "s", above, nothing, EMPTY_SOURCE, False, at_most=0.3)

    def _load(self, source: str, options: dict[str, str]) -> float:
        started = time.monotonic()
        self.spark.read.format(source).options(**options).load()
        return time.monotonic() - started

    def _first_batch(self, source: str, options: dict[str, str]) -> float:
        checkpoint = self.directory / f"start-{next(_NUMBERS)}"
        frame = self.spark.readStream.format(source).options(**options).load()
        started = time.monotonic()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        query.processAllAvailable()
        seconds = time.monotonic() - started
        query.stop()
        shutil.rmtree(checkpoint)
        return seconds

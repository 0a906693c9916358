"""What the tasks of streaming queries have read and written, added up for each query. Pure.

Tasks of the source post their figures when they end, tasks of the sink with their commit. A task that Spark repeats in
a batch counts once. The records that Spark's progress reports are counted next to those that tasks have reported,
because tasks on other hosts report nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from spark_kafkalite.spark.watching.post_box import TaskFigures

SOURCE_SIDE: Final = "source"
SINK_SIDE: Final = "sink"
# Queries whose figures are kept; of more, those go that have reported nothing for the longest time.
_MOST_QUERIES: Final = 1_000
# Subscriptions and topics of one query.
_MOST_SUBJECTS: Final = 100


class Figures(NamedTuple):
    """Sums over tasks. ``bytes`` are those of record batches, compressed as they are. Times are in milliseconds.

    ``busy_ms`` is the time of fetches, or, for a sink, that of encoding records and handing them over. ``wait_ms`` is
    the time in which tasks waited for a fetch, or for acknowledgements.
    """

    tasks: int = 0
    records: int = 0
    bytes: int = 0
    busy_ms: int = 0
    wait_ms: int = 0

    def plus(self, other: Figures) -> Figures:
        """Return the sum."""
        return Figures(*map(sum, zip(self, other, strict=True)))


class QueryFigures(NamedTuple):
    """What a query has read from one subscription (``side`` is ``source``), or written to one target (``sink``).

    ``batch`` is for the batch ``batch_id``, the last one that tasks have reported; ``total`` for all of them since the
    listener was installed.
    """

    query_id: str
    query_name: str | None
    side: str
    subject: str
    batch_id: int
    batch: Figures
    total: Figures


class _Side:
    """One subscription or target of a query."""

    def __init__(self) -> None:
        self.batch_id = -1
        self._before = Figures()
        self._tasks: dict[str, Figures] = {}

    def take(self, batch_id: int, place: str, figures: Figures) -> None:
        if batch_id < self.batch_id:
            # A task that Spark has given up, in a query that has gone on; or the query began again with an older batch.
            self._before = self._before.plus(figures)
            return
        if batch_id > self.batch_id:
            self._before = self.total
            self._tasks = {}
            self.batch_id = batch_id
        self._tasks[place] = figures

    @property
    def batch(self) -> Figures:
        return Figures(*map(sum, zip(*self._tasks.values(), strict=True))) if self._tasks else Figures()

    @property
    def total(self) -> Figures:
        return self._before.plus(self.batch)


class _OfQuery:
    def __init__(self) -> None:
        self.sides: dict[tuple[str, str], _Side] = {}
        # Of all batches: the records of its sources that Spark's progress has reported.
        self.reported_records = 0


class FiguresOfQueries:
    """The figures of one application's queries. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _OfQuery] = {}

    def take(self, side: str, task: TaskFigures) -> None:
        """Add what a task has reported; one outside of streaming queries changes nothing."""
        if not task.query_id:
            return
        figures = Figures(task.tasks, task.records, task.bytes, task.busy_ms, task.wait_ms)
        with self._lock:
            sides = self._of(task.query_id).sides
            key = side, task.subject
            if key not in sides and len(sides) >= _MOST_SUBJECTS:
                return
            sides.setdefault(key, _Side()).take(task.batch_id, task.place, figures)

    def reported(self, query_id: str, records: int) -> None:
        """Count the records of a batch, as Spark's progress has them, that were read from sources of this format."""
        with self._lock:
            self._of(query_id).reported_records += records

    def _of(self, query_id: str) -> _OfQuery:
        found = self._queries.pop(query_id, None) or _OfQuery()
        # Behind those that reported before.
        self._queries[query_id] = found
        if len(self._queries) > _MOST_QUERIES:
            del self._queries[next(iter(self._queries))]
        return found

    def figures(self, names: Mapping[str, str | None]) -> list[QueryFigures]:
        """Return the figures of these queries: ``names`` by their ids."""
        with self._lock:
            return [
                QueryFigures(query_id, name, side, subject, each.batch_id, each.batch, each.total)
                for query_id, name in names.items()
                if query_id in self._queries
                for (side, subject), each in sorted(self._queries[query_id].sides.items())
            ]

    def input_rows(self, names: Mapping[str, str | None]) -> dict[str, int]:
        """Return, for each of these queries, how many records Spark's progress counts, whatever host has read them."""
        with self._lock:
            return {
                query_id: found.reported_records
                for query_id in names
                if (found := self._queries.get(query_id)) is not None
            }

    def unseen(self, names: Mapping[str, str | None]) -> dict[str, int]:
        """Return, for each of these queries, how many records tasks have read that have reported nothing."""
        with self._lock:
            return {
                query_id: max(0, found.reported_records - _read(found))
                for query_id in names
                if (found := self._queries.get(query_id)) is not None
            }


def _read(query: _OfQuery) -> int:
    return sum(each.total.records for (side, _), each in query.sides.items() if side == SOURCE_SIDE)

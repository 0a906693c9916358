"""Loads into a local destination as the job does them, with small Parquet files in place of Spark's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.jobs.load.staging import Staged
from spark_kafkalite.jobs.tables.delta_tables import DeltaTables
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.manifests.manifest import (
    FilePart,
    LoadedRange,
    LoadedTopic,
    Manifest,
    PublishedFile,
    staging_path,
)
from spark_kafkalite.manifests.names import directory_name, file_name
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_356_998_400_000


def columns_of(value: str, value_schema: str | None) -> dict[str, Any]:
    """Return a load's columns; ``value_schema`` is names with types, such as ``id long, name string``."""
    kind: Any = "binary"
    if value_schema is not None:
        pairs = [each.split() for each in value_schema.split(",")]
        kind = {"type": "struct", "fields": [{"name": name, "type": of} for name, of in pairs]}
    fields = [("value", kind), ("partition", "integer"), ("offset", "long"), ("timestamp", "timestamp")]
    return {"type": "struct", "fields": [{"name": name, "type": of} for name, of in fields]}


class Destination:
    """A local destination, and what was loaded into it of the partition 0 of topics."""

    def __init__(self, root: Path, files: LocalFiles | None = None) -> None:
        self.root = root
        self.files = files or LocalFiles(root)
        self.runs = 0

    def tables(self) -> DeltaTables:
        return DeltaTables(self.files, columns_of)

    def load(
        self,
        topics: Mapping[str, int],
        *,
        table: bool = True,
        layout: Mapping[str, str] | None = None,
        days: int = 1,
        rows: Mapping[str, list[dict[str, Any]]] | None = None,
    ) -> Manifest | None:
        """Load some records of topics, at the offsets after those that were loaded, as one run does."""
        self.runs += 1
        run = f"run{self.runs}-{id(self)}"
        newest = publish.recover(self.files, run).newest
        number = 0 if newest is None else newest.number
        tables = self.tables()
        tables.recover(number)
        layouts = {topic: dict(layout or {}) for topic in topics if table or topic in tables.tables}
        tables.make(layouts, number)
        if not any(topics.values()):
            return None
        tables.check(layouts)
        staged, ranges, loaded = [], [], {}
        for topic, count in topics.items():
            start = 0 if newest is None or topic not in newest.topics else newest.topics[topic].next_offsets[0]
            loaded[topic] = LoadedTopic(None, {0: start + count})
            ranges.append(OffsetRange(TopicPartition(topic, 0), start, start + count))
            for day in range(days):
                first, last = start + count * day // days, start + count * (day + 1) // days - 1
                values = None if rows is None else rows[topic]
                staged.append(self._stage(run, topic, first, last, day, layout or {}, values))
        plan = LoadPlan(tuple(ranges), loaded)
        publish.write_plan(self.files, run, plan)
        accounts = [
            LoadedRange(*each.topic_partition, each.start_offset, each.end_offset, records=each.size) for each in ranges
        ]
        tables.begin(layouts.keys(), staged)
        manifest = publish.commit(
            self.files, run, plan, Staged(tuple(staged), tuple(accounts)), newest, layout=dict(layout or {})
        )
        tables.publish(manifest)
        return manifest

    def _stage(
        self, run: str, topic: str, first: int, last: int, day: int, layout: Mapping[str, str], values: Any
    ) -> PublishedFile:
        offsets = list(range(first, last + 1))
        times = [(NEW_YEAR_MS + day * DAY_MS + at) * 1000 for at in offsets]
        table = pa.table(
            {
                "value": pa.array(values or [str(at).encode() for at in offsets]),
                "partition": pa.array([0] * len(offsets), pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )
        staged = f"{staging_path(run)}/data/{topic}-{first}-{day}.parquet"
        path = self.root / staged
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        directory = {"none": "", "hour": f"day=2013-01-{day + 1:02d}/hour=05/"}.get(
            layout.get("partition_by", "day"), f"day=2013-01-{day + 1:02d}/"
        )
        return PublishedFile(
            staged,
            f"{directory_name(topic)}/{directory}{file_name(topic, 0, first, last)}",
            topic,
            (FilePart(0, first, last, len(offsets)),),
            path.stat().st_size,
        )

    def log(self, topic: str) -> list[str]:
        """Return the names of the commits of a topic's table."""
        return sorted(path.name for path in (self.root / topic / "_delta_log").glob("*.json"))


def rows(root: Path, topic: str = "t") -> list[int]:
    """Return the offsets that deltalake reads from a table."""
    import deltalake

    found: list[int] = deltalake.DeltaTable(str(root / topic)).to_pyarrow_table()["offset"].to_pylist()
    return sorted(found)


def mark_of(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "_kafkalite/tables/t/table.json").read_text())
    return found


def committed(root: Path, topic: str) -> list[int]:
    """Return the offsets that the manifests have."""
    parts = [p for m in publish.manifests(LocalFiles(root)) for f in m.files if f.topic == topic for p in f.parts]
    return sorted(offset for part in parts for offset in range(part.first_offset, part.last_offset + 1))


class Stopped(Exception):
    pass


class StoppingFiles(LocalFiles):
    """A directory whose owner dies before its n-th change, or after it where ``after``."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self.changes_left = changes

    def _change(self) -> None:
        if self.changes_left == 0:
            raise Stopped
        self.changes_left -= 1

    def write_new(self, path: str, text: str) -> None:
        self._change()
        super().write_new(path, text)

    def replace(self, path: str, text: str) -> None:
        self._change()
        super().replace(path, text)

    def rename_new(self, source: str, target: str) -> None:
        self._change()
        super().rename_new(source, target)

    def move_directory(self, source: str, target: str) -> None:
        self._change()
        super().move_directory(source, target)

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)


def stopped_everywhere(root: Path, act: Callable[[Destination], Any]) -> list[Path]:
    """Return copies of a destination in which ``act`` died before each of its changes, and one in which it did not."""
    found = []
    for changes in range(1000):
        copy = root.parent / f"stopped-{changes}"
        subprocess.run(["cp", "-r", str(root), str(copy)], check=True)
        found.append(copy)
        try:
            act(Destination(copy, StoppingFiles(copy, changes)))
        except Stopped:
            continue
        return found
    raise AssertionError("it never ended")


def resync(destination: Destination) -> None:
    number = publish.newest_number(destination.files)
    tables = destination.tables()
    tables.recover(number, without=["t"])
    tables.resync(["t"], number, publish.new_run())

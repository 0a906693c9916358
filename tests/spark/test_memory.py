"""What Spark's Python processes take while a topic is read and written whole, without a limit set: no more than 400 MB
each, whatever the size of the topic.

Only with ``KAFKALITE_SOAK=1``: a topic has 1 GB, or as many as ``KAFKALITE_MEMORY_GB`` says.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition

from .topics import Topics

_GB = float(os.environ.get("KAFKALITE_MEMORY_GB") or 1)
pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.any_spark,
    pytest.mark.timeout(int(600 + 600 * _GB)),
]

LIMIT_BYTES = 400_000_000
_SAMPLED_EVERY_S = 0.05


class PythonProcesses:
    """The Python processes below Spark's JVM while this is entered, with the most memory that each had at once."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        # By process: what it runs, and the most resident bytes.
        self.peaks: dict[int, tuple[str, int]] = {}

    def __enter__(self) -> Self:
        for process in self._below():
            # Sets VmHWM to what it has now: earlier tests are not counted.
            Path(f"/proc/{process}/clear_refs").write_text("5")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLED_EVERY_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for process in self._below():
            try:
                status = Path(f"/proc/{process}/status").read_text()
                command = Path(f"/proc/{process}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            peak = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
            if peak is not None and "python" in command[0]:
                self.peaks[process] = (command[-1], 1024 * int(peak.split()[1]))

    def _below(self) -> Iterator[int]:
        """Yield the processes that the JVM has started, and theirs, by what the kernel says now."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (FileNotFoundError, ProcessLookupError):
                    continue
        for process in parents:
            above = parents[process]
            while above in parents and above != self._jvm:
                above = parents[above]
            if above == self._jvm:
                yield process

    def check(self, doing: str) -> None:
        print(f"{doing}, {_GB:g} GB: the most of each process in MB")
        for what, peak in sorted(self.peaks.values(), key=lambda each: -each[1]):
            print(f"  {peak / 1e6:6.0f} {what}")
        assert self.peaks
        assert max(peak for _, peak in self.peaks.values()) <= LIMIT_BYTES


def fill(topics: Topics, size: int, count: int) -> str:
    """Return a topic of four partitions with so many records, which do not compress."""
    topic = topics.new(4, retention_ms="-1")
    chance = random.Random(size)
    rows = max(1, 8_000_000 // size)
    batch = pa.record_batch({"value": pa.array([chance.randbytes(size) for _ in range(rows)], pa.binary())})
    for start in range(0, count, rows):
        topics.producer.send_batch(topic, batch.slice(0, min(rows, count - start)))
    topics.producer.flush(300)
    return topic


@pytest.mark.parametrize("size", [1_000, 1_000_000], ids=["1 KB", "1 MB"])
def test_reading_takes_no_more_than_it_may(topics: Topics, checkpoint: str, size: int) -> None:
    count = int(_GB * 1e9) // size
    topic = fill(topics, size, count)
    with PythonProcesses(topics.spark) as processes:
        [row] = topics.read(topic).selectExpr("count(*) AS rows", "sum(length(value)) AS bytes").collect()
    assert (row.rows, row.bytes) == (count, count * size)
    processes.check(f"a batch of records of {size} bytes")
    with PythonProcesses(topics.spark) as processes:
        writer = topics.stream(topic).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    assert sum(progress.numInputRows for progress in query.recentProgress) == count
    processes.check(f"a stream of records of {size} bytes")


def test_writing_takes_no_more_than_it_may(topics: Topics) -> None:
    # Of larger rows, how many come to the worker at once is a setting of Spark's (arrow.maxRecordsPerBatch).
    size = 1_000
    count = int(_GB * 1e9) // size
    topic = topics.new(4, retention_ms="-1")
    text = f"repeat(sha2(cast(id AS string), 256), {-(-size // 64)})"
    rows = topics.spark.range(0, count, 1, 4).selectExpr(f"substring({text}, 1, {size}) AS value")
    with PythonProcesses(topics.spark) as processes:
        rows.write.format("kafkalite").options(**topics.options({"topic": topic})).mode("append").save()
    processes.check(f"writing records of {size} bytes")
    ends = topics.admin.list_offsets({TopicPartition(topic, number): LATEST_TIMESTAMP for number in range(4)})
    assert sum(end.offset for end in ends.values() if end is not None) == count

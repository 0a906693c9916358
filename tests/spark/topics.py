"""What the Spark tests do over and over: make topics, fill them, read and stream them, look at checkpoints."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_kafkalite import Admin, Producer
from spark_kafkalite.spark.pyspark_versions import start_available_now
from tests.patience import PATIENCE_S

# A query starts Python processes and runs several batches, which takes longer than one condition.
QUERY_PATIENCE_S: Final = 3 * PATIENCE_S


class Topics:
    """Topics of one test on one broker."""

    def __init__(self, bootstrap: str, spark: SparkSession, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.spark = spark
        self._prefix = prefix
        self._count = 0
        self.admin = Admin({"bootstrap.servers": bootstrap})
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def new(self, partitions: int = 1, name: str = "topic", **configs: str) -> str:
        """Make a topic and return its name."""
        self._count += 1
        topic = f"{self._prefix}-{self._count}-{name}"
        self.admin.create_topic(topic, partitions, configs={key.replace("_", "."): v for key, v in configs.items()})
        return topic

    def fill(self, topic: str, values: Iterable[object], partition: int | None = 0, **fields: Any) -> None:
        """Send values as text, all acknowledged on return."""
        for value in values:
            self.producer.send(topic, str(value).encode(), partition=partition, **fields)
        self.producer.flush(PATIENCE_S)

    # Reading --------------------------------------------------------------------------------------------------------

    def options(self, given: Mapping[str, object]) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, **{name: str(value) for name, value in given.items()}}

    def read(self, topic: str | None = None, **given: object) -> DataFrame:
        if topic is not None:
            given = {"subscribe": topic, **given}
        return self.spark.read.format("kafkalite").options(**self.options(given)).load()

    def values(self, topic: str | None = None, **given: object) -> list[str]:
        """Return all values read, in order of partition and offset."""
        rows = self.read(topic, **given).orderBy("topic", "partition", "offset").collect()
        return [row.value.decode() for row in rows]

    def stream(self, topic: str | None = None, **given: object) -> DataFrame:
        if topic is not None:
            given = {"subscribe": topic, "startingOffsets": "earliest", **given}
        return self.spark.readStream.format("kafkalite").options(**self.options(given)).load()

    def collect(
        self,
        stream: DataFrame,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        each: Callable[[int, list[Row]], None] | None = None,
    ) -> tuple[StreamingQuery, list[str]]:
        """Start a query and return it with the list that its values go into, as text, batch by batch."""
        values: list[str] = []

        def take(batch: DataFrame, batch_id: int) -> None:
            rows = batch.collect()
            if each is not None:
                each(batch_id, rows)
            values.extend(sorted(bytes(row.value).decode() for row in rows))

        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        return started(writer, trigger), values

    def run(self, stream: DataFrame, checkpoint: str, **trigger: Any) -> list[str]:
        """Run a query with AvailableNow (or another trigger that ends) to its end and return the values it read."""
        query, values = self.collect(stream, checkpoint, trigger or None)
        await_end(query)
        return values

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.producer.close(5)
        self.admin.close()


def started(writer: DataStreamWriter, trigger: Mapping[str, Any] | None = None) -> StreamingQuery:
    """Start a query with a trigger; without one it reads what is there, in batches on every PySpark, and ends."""
    return start_available_now(writer) if trigger is None else writer.trigger(**trigger).start()


def await_end(query: StreamingQuery) -> None:
    """Wait for a query to end. Raises the error that it ended with."""
    assert query.awaitTermination(QUERY_PATIENCE_S), "the query did not end"


def logged_offsets(checkpoint: str) -> list[dict[str, Any]]:
    """Return the source's offsets of each batch in a checkpoint's offset log."""
    files = sorted(
        (path for path in Path(checkpoint, "offsets").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    return [json.loads(path.read_text().splitlines()[-1]) for path in files]


def let_look_quiet(checkpoint: str) -> None:
    """Let a checkpoint look as if its query had written nothing for an hour."""
    then_s = time.time() - 3600
    for path in Path(checkpoint).rglob("*"):
        os.utime(path, (then_s, then_s))


def last_line(error: BaseException) -> str:
    """Return the last line of what a Spark user sees of an error of ours, without what the JVM puts behind it."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith("[KAFKA")]
    assert ours, str(error)
    # Nothing but the JVM's own tail may follow.
    rest = lines[lines.index(ours[-1]) + 1 :]
    assert all(not line or line.startswith(("SQLSTATE", "===", "Identifier", "Current", "Logical", "\tat", "at ", "Stream"))  # noqa: E501
               for line in rest[:2]), rest  # fmt: skip
    return ours[-1]

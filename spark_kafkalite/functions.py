"""``spark_kafkalite.functions``: what an application needs beside ``format("kafkalite")`` itself.

:func:`write_update` writes a streaming query in update mode, which Spark does not let a Python sink do directly: each
micro-batch is written by a batch write inside ``foreachBatch``. At-least-once, as the sink is: a batch that is repeated
after a failure is written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["write_update"]


def write_update(data: DataFrame, options: Mapping[str, object] | None = None, **keywords: object) -> DataStreamWriter:
    """Return a writer of a streaming DataFrame in update mode; give it a checkpoint and a trigger, and start it.

    ``options`` are those of the sink (``kafka.bootstrap.servers``, ``topic``, ``kafka.*``); ``keywords`` are the same
    where a name can be a Python one (``topic="t"``). The rows that changed are written after every batch::

        counts = events.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
        query = (
            write_update(counts, {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "counts"})
            .option("checkpointLocation", "/checkpoints/counts")
            .start()
        )

    Raises ConfigError when ``data`` is not a stream, and what the sink raises for its options when the query runs.
    """
    if not data.isStreaming:
        raise ConfigError("write_update needs a streaming DataFrame; write this one with .write.mode('append')")
    given = {name: str(value) for name, value in {**(options or {}), **keywords}.items()}

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("kafkalite").options(**given).mode("append").save()

    return data.writeStream.outputMode("update").foreachBatch(write)

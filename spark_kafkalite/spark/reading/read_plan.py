"""What the driver and the tasks of a read share: the plan of the read, and the ranges of each task.

It is apart from :mod:`.partition_reader`, which reads. Spark starts a Python process on the driver for each streaming
query, which only plans. The code that fetches and decodes was a third of our modules that such a process imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_kafkalite.redaction import ShownSettings
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.reading.data_loss import LossPolicy
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.watching.post_box import listening_jvm
from spark_kafkalite.spark.workers.connections import reading_config
from spark_kafkalite.spark.workers.early_ack import EarlyAck
from spark_kafkalite.spark.workers.task_tokens import token_for_tasks

if TYPE_CHECKING:
    from spark_kafkalite.security.tokens import HeldToken


@dataclass(frozen=True)
class ReadPlan(EarlyAck):
    """What every task of a read needs to know; pickled with the reader.

    ``application`` is the number of the JVM that the plan was made for, if an application there watches its queries on
    this host, else 0.
    """

    client: Mapping[str, str]
    schema: pa.Schema
    losses: LossPolicy
    read_timeout_ms: int
    subject: str = ""
    application: int = 0

    @classmethod
    def of(cls, options: ReaderOptions, schema: pa.Schema) -> ReadPlan:
        """Return the plan of a read. Raises SparkConditionError for a bad client setting."""
        reading_config(options.client)
        return cls(
            ShownSettings(options.client),
            schema,
            options.losses,
            options.read_timeout_ms,
            options.subject,
            listening_jvm(),
        )


class ReadTask(InputPartition):
    """The ranges that one task reads, one after the other, and the token of the moment in which it was planned."""

    def __init__(self, ranges: tuple[OffsetRange, ...], token: HeldToken | None = None) -> None:
        self.ranges = ranges
        self.token = token

    def __repr__(self) -> str:
        return f"ReadTask({', '.join(map(str, self.ranges))})"


def tasks_of(options: ReaderOptions, ranges: Iterable[Iterable[OffsetRange]]) -> list[ReadTask]:
    """Return a task for each list of ranges. Raises SparkConditionError when there is no token for them."""
    token = token_for_tasks(reading_config(options.client).client, options.client, str(options.subscription))
    return [ReadTask(tuple(each), token) for each in ranges]

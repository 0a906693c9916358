"""What a task of the source or the sink reports when it has ended: a line in its log, and its figures.

The line is of level INFO, in the logger ``spark_kafkalite.spark``. The figures go to the application that watches its
queries on this host (``watching.post_box``), which puts the same line into Spark's log. Nothing is counted per record.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from pyspark import TaskContext

from spark_kafkalite.spark.watching.post_box import TaskFigures, post

_LOG = logging.getLogger("spark_kafkalite.spark")

# Local properties that Spark sets for the tasks of a micro-batch. Source: StreamExecution.QUERY_ID_KEY,
# MicroBatchExecution.BATCH_ID_KEY.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class TaskPlace(NamedTuple):
    """Where the current task stands. ``query_id`` is empty, and ``batch_id`` -1, outside of streaming queries.

    ``stage_id`` and ``partition_id`` are -1 outside of Spark's tasks.
    """

    query_id: str
    batch_id: int
    stage_id: int
    partition_id: int


def task_place() -> TaskPlace:
    """Return the place of the task that this process runs."""
    task = TaskContext.get()
    if task is None:
        return TaskPlace("", -1, -1, -1)
    query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        return TaskPlace("", -1, task.stageId(), task.partitionId())
    return TaskPlace(query, int(batch), task.stageId(), task.partitionId())


def report(figures: TaskFigures, application: int = 0) -> None:
    """Write the line, and post the figures: to the application of that JVM, or else of the JVM that is this process's
    parent or grandparent, which is another one where executors are processes of their own."""
    log_line(figures.text)
    post(figures, (application,) if application else None)


def log_line(text: str) -> None:
    """Write the line alone."""
    _LOG.info("%s", text)


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds."""
    return round(seconds * 1000)

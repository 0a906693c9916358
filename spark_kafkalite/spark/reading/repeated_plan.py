"""Warns of a batch plan that Spark executes again after the log has moved.

From PySpark 4.1 on, Spark plans a batch read once for each ``.load()``, and keeps the tasks. So every later action on
the DataFrame reads the offsets of the first one: the static side of a streaming join in each micro-batch, a temporary
view, a DataFrame in a notebook. Spark asks the source nothing then, and only the tasks run. So the first task of a plan
finds out: it has the plan's own name and the ends that were looked up (:class:`PlanEnds`). A host that runs it for two
different executions (actions) of Spark asks the brokers for the ends again, and warns of records that the plan lacks.

The first execution costs a small file. On a cluster the first task may run on another host each time; then the
warning comes with the first host that runs it twice. Nothing here ever fails a task.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark import TaskContext

from spark_kafkalite.client.consume.list_offsets import offsets_for
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition
from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.spark.options.positions import PositionKind, Positions
from spark_kafkalite.spark.reading.offset_ranges import Offsets
from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask
from spark_kafkalite.spark.workers.connections import cluster_for, reading_config
from spark_kafkalite.spark.workers.worker_log import SOURCE, SaidBefore, application_directory, speak_of

_LOG = logging.getLogger("spark_kafkalite.spark")

# The number of the action, or of the micro-batch's query execution, in Spark's properties of a task.
_EXECUTION: Final = "spark.sql.execution.id"
# The task waits for the brokers so long, and then reads without a warning.
_TIMEOUT_MS: Final = 10_000
_DIRECTORY: Final = "kafkalite-plans"


@dataclass(frozen=True)
class PlanEnds:
    """The ends of a plan that were the ends of the logs when it was made, and a name for the plan."""

    ends: Mapping[TopicPartition, int]
    plan: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(cls, ending: Positions | None, ends: Offsets) -> PlanEnds:
        """Return those of a plan's ends for which the option ``ending`` names the end of the log."""
        places = ending or Positions()
        open_ends = {}
        for tp, offset in ends.items():
            place = places.of(tp)
            if place is not None and place.kind is PositionKind.LATEST:
                open_ends[tp] = offset
        return cls(open_ends)


class FirstTask(ReadTask):
    """The first task of a plan, with what :func:`warn_if_repeated` needs."""

    def __init__(self, task: ReadTask, planned: PlanEnds) -> None:
        super().__init__(task.ranges, task.token)
        self.planned = planned


def is_repeated(planned: PlanEnds, execution: str, seen: SaidBefore) -> bool:
    """Whether the last execution of a plan, as far as ``seen`` knows, was another one than this. ``seen`` notes this.

    One execution may run a task several times: in a retry, or in stages of which one takes samples for the other.
    """
    return seen.is_used_again(planned.plan, execution)


def warn_if_repeated(plan: ReadPlan, task: FirstTask) -> None:
    """Warn if this task's plan was executed before, and the logs have records behind its ends. Runs in the task."""
    planned = task.planned
    context = TaskContext.get()
    execution = None if context is None else context.getLocalProperty(_EXECUTION)
    if not planned.ends or execution is None or not is_repeated(planned, execution, _seen()):
        return
    speak_of(SOURCE, plan.subject)
    config = reading_config(plan.client, task.token)
    try:
        found = offsets_for(
            cluster_for(config.client, plan.client),
            dict.fromkeys(planned.ends, LATEST_TIMESTAMP),
            Deadline.after_ms(_TIMEOUT_MS),
            isolation=config.isolation,
        )
    except KafkaliteError:
        # The read itself reports a topic that is gone, and brokers that are unavailable.
        return
    behind = behind_logs(planned.ends, {tp: each.offset for tp, each in found.items() if each is not None})
    if behind:
        _LOG.warning(
            "this read is repeated with the offsets of its first action, which Spark keeps: %d newer offsets of %s are "
            "not read. Load the DataFrame again to read them; in a streaming join, call "
            "spark_kafkalite.functions.latest inside foreachBatch (docs/spark.md)",
            sum(behind.values()),
            listed(sorted({tp.topic for tp in behind})),
        )


def behind_logs(planned: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return by how many offsets the planned ends are behind the logs, of those partitions in which they are."""
    return {tp: now[tp] - end for tp, end in planned.items() if now.get(tp, end) > end}


@functools.cache
def _seen() -> SaidBefore:
    """Return what the processes of this host know of executed plans; it is bounded, and forgets the oldest ones."""
    directory = application_directory()
    return SaidBefore(None if directory is None else directory / _DIRECTORY)

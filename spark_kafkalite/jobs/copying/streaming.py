"""Code of all jobs that are streaming queries: the topics of their checkpoint, and the end of the query.

The offsets in a checkpoint do not show that a topic was deleted and created again in between, and have no room for a
topic's id. So the jobs keep the ids in the checkpoint, ``CHECKPOINT/_kafkalite/topic_ids/NAME`` with one JSON object
each, and refuse another id.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import click

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.jobs.load.planning import DataLossError
from spark_kafkalite.jobs.program.stopping import Stopped
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import HOME
from spark_kafkalite.manifests.names import directory_name
from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition
from spark_kafkalite.spark.reading.topic_id import topic_id_text
from spark_kafkalite.spark.sink.origin import ORIGIN

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_kafkalite.client.admin.admin import Admin

_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
_LOOK_FOR_INTERRUPTION_S: Final = 1
SOURCE_IDS: Final = "topic_ids"


def topic_id_path(checkpoint: Files, topic: str, kind: str = SOURCE_IDS) -> str:
    """Return the file of a checkpoint that holds a topic's id; ``kind`` separates topics read from those written."""
    return f"{HOME}/{kind}/{directory_name(topic, checkpoint.name_max_bytes)}"


def check_topic_id(checkpoint: Files, topic: str, found: str | None, advice: str, kind: str = SOURCE_IDS) -> bool:
    """Return whether the checkpoint holds the topic's id.

    Raises DataLossError, ending in ``advice``, if it holds another id.
    """
    path = topic_id_path(checkpoint, topic, kind)
    if not checkpoint.exists(path):
        return False
    remembered = json.loads(checkpoint.read(path))["id"]
    if found is not None and remembered != found:
        raise DataLossError(
            f"topic {topic}: the checkpoint {checkpoint.root} is of the topic with id {remembered}, but its id now "
            f"is {found}: it was deleted and created again, or this is another cluster; {advice}"
        )
    return True


def remember_topic_id(checkpoint: Files, topic: str, found: str, kind: str = SOURCE_IDS) -> None:
    """Write down the id of a topic that the checkpoint does not remember."""
    checkpoint.write_new(topic_id_path(checkpoint, topic, kind), json.dumps({"topic": topic, "id": found}) + "\n")


def check_topic_ids(admin: Admin, checkpoint: Files, topics: Iterable[str]) -> None:
    """Remember the ids of topics that a query reads. Raises DataLossError for one that is not the remembered one."""
    for topic in topics:
        try:
            found = topic_id_text(admin.describe_topics([topic])[topic].topic_id)
        except UnknownTopicOrPartition:
            continue  # The source says so in its own words.
        advice = "give another --checkpoint to read the topic from --starting-offsets"
        if found is None or check_topic_id(checkpoint, topic, found, advice):
            continue
        if checkpoint.names("offsets"):
            click.echo(
                f"topic {topic}: the checkpoint does not name the id of the topic that was read; the one that exists "
                f"now, with id {found}, is taken for it",
                err=True,
            )
        remember_topic_id(checkpoint, topic, found)


def has_begun(checkpoint: Files) -> bool:
    """Whether a query has planned a batch with this checkpoint, and where to start is decided."""
    return any(name.isdecimal() for name in checkpoint.names("offsets"))


def origin_column() -> Column:
    """Return the column that has the sink name a record which its topic refuses by where it was read."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    return F.struct("topic", "partition", "offset").alias(ORIGIN)


def await_end(query: StreamingQuery, report: Callable[[], None] | None = None, report_every_s: float = 0) -> None:
    """Wait until the query ends; Ctrl-C stops it, and so does SIGTERM, which raises Stopped then.

    ``report`` is called now and then while the query runs. PySpark's own handler would talk to the JVM in the middle of
    another call, and print tracebacks.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    came: list[int] = []
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in _STOPPING}
    due_s = time.monotonic() + report_every_s
    try:
        while not came and not query.awaitTermination(_LOOK_FOR_INTERRUPTION_S):
            if report is not None and time.monotonic() >= due_s:
                report()
                due_s = time.monotonic() + report_every_s
        if came:
            # Under spark-submit the JVM has had the signal too and may be gone.
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                query.stop()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if signal.SIGTERM in came:
        raise Stopped


# The topic in which a job's sink leaves records that their target refuses, and how many came there. The sink writes
# in Spark's processes, which give a job no numbers back, so the topic's offsets are counted: what other programs
# write to it meanwhile is counted, too.


class QuarantineTopic:
    """The quarantine topic ``name`` of the cluster that ``admin`` asks."""

    def __init__(self, admin: Admin, name: str) -> None:
        self.name = name
        self._admin = admin
        self._begins: dict[TopicPartition, int] = {}

    def begin(self, replication_factor: int = -1) -> None:
        """Create the topic if it is missing, with one partition, and count from now on."""
        try:
            self._begins = self._ends()
        except UnknownTopicOrPartition:
            self._admin.create_topic(self.name, 1, replication_factor, if_not_exists=True)
            click.echo(f"created topic {self.name} for records that are refused", err=True)

    def came(self) -> int:
        """Return how many records have come since :meth:`begin`."""
        return sum(max(0, end - self._begins.get(tp, 0)) for tp, end in self._ends().items())

    def _ends(self) -> dict[TopicPartition, int]:
        info = self._admin.describe_topics([self.name])[self.name]
        partitions = [TopicPartition(self.name, each.partition) for each in info.partitions]
        found = self._admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
        return {tp: each.offset for tp, each in found.items() if each is not None}

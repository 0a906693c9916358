"""The topic in which a job's sink leaves records that their target refuses, and how many came there.

The sink writes in Spark's processes, which give a job no numbers back, so the topic's offsets are counted: what other
programs write to it meanwhile is counted, too.
"""

from __future__ import annotations

import click

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition


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

"""Committed offsets as a stream writes them, with topic id and writer, and the stores that its options name.

The coordinator stores a metadata text with each offset. A stream writes JSON, ``{"topic_id":"...","writer":"..."}``:

- ``topic_id``: the topic's id at the commit, as Kafka writes ids (URL-safe base64 without padding). With it a stream
  detects a topic that was deleted and created again, even across a restart.
- ``writer``: the process that committed. It distinguishes two queries that use the same group.

ZooKeeper stores only the decimal number, as it does for registry consumers.

Functions import the modules for ZooKeeper where they use them, because every Python worker of Spark imports this module
and most workers do not need ZooKeeper.

An offset is the next one to read, as everywhere in Spark and Kafka.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.offset_stores.coordinator import CoordinatorOffsets
from spark_kafkalite.client.offset_stores.store import OffsetStore
from spark_kafkalite.model import CommittedOffset
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.reading.topic_id import topic_id_of, topic_id_text
from spark_kafkalite.spark.workers.connections import cluster_for, reading_config


class StoredOffset(NamedTuple):
    """An offset as a stream stores it. ``topic_id`` None and ``writer`` empty: unknown, as always in ZooKeeper."""

    offset: int
    topic_id: bytes | None = None
    writer: str = ""

    @classmethod
    def of(cls, committed: CommittedOffset) -> StoredOffset:
        """Return the offset in a store. Its metadata may be any text, because other programs also commit offsets."""
        return cls(committed.offset, *_from_metadata(committed.metadata))

    def committed(self) -> CommittedOffset:
        """Return the offset in the form for a store."""
        fields = {"writer": self.writer}
        if self.topic_id is not None:
            fields["topic_id"] = topic_id_text(self.topic_id) or ""
        return CommittedOffset(self.offset, json.dumps(fields, sort_keys=True, separators=(",", ":")))

    def is_of_another_topic(self, topic_id: bytes | None) -> bool:
        """Whether both topic ids are known and differ: the topic was deleted and created again."""
        return self.topic_id is not None and topic_id is not None and self.topic_id != topic_id


def _from_metadata(text: str) -> tuple[bytes | None, str]:
    """Return (topic id, writer)."""
    try:
        fields = json.loads(text)
        return topic_id_of(fields.get("topic_id")), str(fields.get("writer", ""))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None, ""


def stores_of(options: ReaderOptions) -> list[OffsetStore]:
    """Return the stores in the options, for commits and for ``startingOffsets=committed``."""
    commit = options.commit
    if commit.group_id is None:
        return []
    stores: list[OffsetStore] = []
    if commit.to_group or not commit.to_zookeeper:
        cluster = cluster_for(reading_config(options.client).client, options.client)
        stores.append(CoordinatorOffsets(CoordinatorLink(cluster, commit.group_id)))
    if commit.zookeeper_connect is not None:
        from spark_kafkalite.client.offset_stores.registry import CheckedRegistryOffsets
        from spark_kafkalite.client.registry_link import ZooKeeperLink

        stores.append(CheckedRegistryOffsets(ZooKeeperLink(commit.zookeeper_connect), commit.group_id))
    return stores

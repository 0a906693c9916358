"""Committed offsets as a stream writes them, with topic id and writer, and the stores that its options name.

The coordinator keeps a text with each offset. Ours is JSON, ``{"topic_id":"...","writer":"..."}``: the id that the
topic had (as Kafka writes ids: base64 for addresses, without padding), so that a topic which was deleted and made again
is recognised even across a restart, and which process committed, so that two queries on one group can be told apart.
ZooKeeper keeps the decimal number that registry consumers keep there and nothing else.

What is needed for ZooKeeper is imported where it is used: every Python worker of Spark imports this module, and most
need none of it.

An offset is the next one to read, as everywhere in Spark and Kafka.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import NamedTuple

from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.offset_stores.coordinator import CoordinatorOffsets
from spark_kafkalite.client.offset_stores.store import OffsetStore
from spark_kafkalite.model import CommittedOffset
from spark_kafkalite.spark.connections import cluster_for, reading_config
from spark_kafkalite.spark.options import ReaderOptions


class StoredOffset(NamedTuple):
    """An offset as a stream stores it. ``topic_id`` None and ``writer`` empty: not known, as always in ZooKeeper."""

    offset: int
    topic_id: bytes | None = None
    writer: str = ""

    @classmethod
    def of(cls, committed: CommittedOffset) -> StoredOffset:
        """Return what a store has; other programs write whatever text they like there."""
        return cls(committed.offset, *_from_metadata(committed.metadata))

    def committed(self) -> CommittedOffset:
        """Return what goes to a store."""
        fields = {"writer": self.writer}
        if self.topic_id is not None:
            fields["topic_id"] = base64.urlsafe_b64encode(self.topic_id).decode("ascii").rstrip("=")
        return CommittedOffset(self.offset, json.dumps(fields, sort_keys=True, separators=(",", ":")))

    def is_of_another_topic(self, topic_id: bytes | None) -> bool:
        """Whether the topic has been deleted and made again between this offset and that id, as far as is known."""
        return self.topic_id is not None and topic_id is not None and self.topic_id != topic_id


def _from_metadata(text: str) -> tuple[bytes | None, str]:
    """Return (topic id, writer)."""
    try:
        fields = json.loads(text)
        writer, encoded = fields.get("writer", ""), fields.get("topic_id")
        topic_id = None if encoded is None else base64.urlsafe_b64decode(encoded + "==")
    except (ValueError, TypeError, AttributeError, RecursionError, binascii.Error):
        return None, ""
    return topic_id if topic_id is not None and len(topic_id) == 16 else None, str(writer)


def stores_of(options: ReaderOptions) -> list[OffsetStore]:
    """Return the stores that the options name: where to commit, or where ``startingOffsets=committed`` looks."""
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

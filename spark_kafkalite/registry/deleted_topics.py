"""/kafkalite/deleted_topics: the ids of the topics that the controller has deleted lately.

A broker deletes the log of a topic that the registry does not have only if the topic's id is in this node. The
controller adds the id before it removes anything of the topic: a broker that sees the topic vanish, or was down when
it did, finds the id here. A topic's node that vanishes in another way costs no log.

The node is JSON, ``{"version":1,"topics":[["ID",MS],...]}``: the id as in the topic's node, and when the controller
began the deletion, in milliseconds since the epoch; the oldest deletion comes first. It holds the last 10,000
deletions, each for seven days: 410 KB at most. Only the controller writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_kafkalite.registry.node_json import (
    MAX_INT64,
    MOST_FIELDS_BYTES,
    array,
    decode_object,
    encode_object,
    no_fields,
    number,
    reading,
    text,
    unknown_fields,
)

PATH: Final = "/kafkalite/deleted_topics"
MOST_TOPICS: Final = 10_000
KEPT_MS: Final = 7 * 24 * 3_600_000
_FIELDS: Final = frozenset({"version", "topics"})


@dataclass(frozen=True, slots=True)
class DeletedTopics:
    """What the node holds: of each topic id, as text, when its deletion began, in milliseconds since the epoch."""

    deleted_ms: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=no_fields)

    def with_added(self, topic_ids: Iterable[str], now_ms: int) -> DeletedTopics:
        """Return these topics and those whose deletion begins now, without those that are too old or too many."""
        kept = {topic_id: since_ms for topic_id, since_ms in self.deleted_ms.items() if now_ms - since_ms < KEPT_MS}
        for topic_id in topic_ids:
            # The last deletion comes last.
            kept.pop(topic_id, None)
            kept[topic_id] = now_ms
        return DeletedTopics(dict(list(kept.items())[-MOST_TOPICS:]), self.unknown)

    def encode(self) -> bytes:
        topics = [[topic_id, since_ms] for topic_id, since_ms in self.deleted_ms.items()]
        return encode_object({"version": 1, "topics": topics, **self.unknown})

    @classmethod
    def decode(cls, data: bytes) -> DeletedTopics:
        """Return what the node holds. Raises MalformedNode."""
        fields = decode_object(PATH, data)
        with reading(PATH, data):
            deleted_ms = {}
            for topic_id, since_ms in array(fields["topics"]):
                deleted_ms[text(topic_id)] = number(since_ms, 0, MAX_INT64)
            return cls(deleted_ms, unknown_fields(PATH, fields, _FIELDS, MOST_FIELDS_BYTES))

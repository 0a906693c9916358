"""How old the records are that groups read next. What was looked up once is remembered: a record keeps its time."""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafkalite.client.consume.record_timestamps import Place, timestamps_at
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline


class RecordTimeCache:
    """Timestamps of records, in ms, by partition and offset. It keeps those that were asked for last."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._known: dict[Place, int] = {}
        self._unreadable: set[str] = set()

    @property
    def problem(self) -> str | None:
        """What an operator should know if the client may not READ some topics."""
        if not self._unreadable:
            return None
        topic = min(self._unreadable)
        others = len(self._unreadable) - 1
        return (
            f"this client may not READ topic {topic!r}{f' and {others} more' if others else ''}, so the lag of groups "
            "in seconds is not known there; allow it: kafkalite acls add --allow-principal User:NAME --operation Read "
            f"--topic '{topic if not others else '*'}'"
        )

    def look(self, places: Iterable[Place], *, most: int, deadline: Deadline) -> dict[Place, int]:
        """Return the timestamps of records at or after offsets, as far as they are known at the deadline.

        Up to ``most`` records that are not known yet are asked for; others wait for the next look.
        """
        known: dict[Place, int] = {}
        new: dict[Place, None] = {}
        for place in places:
            timestamp = self._known.get(place)
            if timestamp is not None:
                known[place] = timestamp
            elif len(new) < most:
                new[place] = None
        # What nobody asks for any more is forgotten here.
        self._known = known
        known.update(timestamps_at(self._cluster, new, deadline, self._unreadable))
        return known

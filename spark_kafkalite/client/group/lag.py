"""How far a group is behind, in records and in time, from committed offsets and the logs themselves.

Lag in records is the log's end less the committed offset, as Kafka's tools count it. Lag in time is the age of the
record that comes next: now less that record's timestamp, read from the log itself, with one fetch of one batch for each
partition that has a lag (nothing else is read). So it is right also where offsets were committed weeks before or by
hand, and it depends on producers' clocks where the topic has their timestamps. Nothing to read is an age of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.client.consume.list_offsets import offsets_for
from spark_kafkalite.client.consume.record_timestamps import record_timestamps
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

_NOT_KNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition's lag. ``committed`` None: the group has no offset there.

    The log's offsets are None where the partition does not exist (any more), has no leader now, or one that does not
    know its end yet. ``age_ms`` is None where the next record has no timestamp or cannot be read.
    """

    committed: int | None
    log_start_offset: int | None
    log_end_offset: int | None
    age_ms: int | None

    @property
    def records(self) -> int | None:
        """Records from the committed offset to the end of the log, None where either is not known.

        Negative when the log ends before the committed offset: the topic was recreated.
        """
        if self.committed is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.committed

    @property
    def deleted(self) -> int:
        """How many of these records are not in the log any more: the group can never read them."""
        if self.committed is None or self.log_start_offset is None:
            return 0
        return max(0, self.log_start_offset - self.committed)


def partition_lags(
    cluster: ClusterClient,
    committed: Mapping[TopicPartition, int | None],
    deadline: Deadline,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[TopicPartition, PartitionLag]:
    """Return the lag of each partition, behind its committed offset (None: it has none)."""
    snapshot = cluster.refresh({each.topic for each in committed}, deadline)
    readable = [each for each in committed if snapshot.leader(*each) in snapshot.nodes]
    starts = offsets_for(cluster, dict.fromkeys(readable, EARLIEST_TIMESTAMP), deadline)
    # A leader of just now does not know its end yet: no news, and nothing to wait for.
    no_news = dict.fromkeys(readable, _NOT_KNOWN)
    ends = offsets_for(cluster, dict.fromkeys(readable, LATEST_TIMESTAMP), deadline, last_known=no_news)
    bounds = {
        each: (start.offset, end.offset)
        for each in readable
        if (start := starts[each]) is not None and (end := ends[each]) is not None and end.offset != _NOT_KNOWN
    }
    behind = {
        each: max(offset, bounds[each][0])
        for each, offset in committed.items()
        if offset is not None and each in bounds and max(offset, bounds[each][0]) < bounds[each][1]
    }
    timestamps = record_timestamps(cluster, behind, deadline)
    now_ms = clock.wall_ms()
    lags: dict[TopicPartition, PartitionLag] = {}
    for each, offset in committed.items():
        start_offset, end_offset = bounds.get(each, (None, None))
        age_ms = None if offset is None or each not in bounds else 0
        if each in behind:
            timestamp = timestamps.get(each, -1)
            # A producer's clock may be ahead of ours.
            age_ms = max(0, now_ms - timestamp) if timestamp >= 0 else None
        lags[each] = PartitionLag(offset, start_offset, end_offset, age_ms)
    return lags

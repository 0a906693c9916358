"""What ``kafkalite top`` shows: rows for brokers, topics, groups and partitions, as values and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from spark_kafkalite.client.network.metadata import ClusterSnapshot, PartitionInfo

# What is wrong with a partition, the worst first.
OFFLINE: Final = "offline"
REFUSES: Final = "refuses acks=all"
UNDER_REPLICATED: Final = "under-replicated"
BY_LAG: Final = "lag"
BY_GROWTH: Final = "growth"
SEVERITY: Final = {OFFLINE: 0, REFUSES: 1, UNDER_REPLICATED: 2}


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker. Rates are per second and None where they are not known, as are bytes and the loop's lag (ms).

    ``records_per_s`` is of the partitions that it leads; bytes and the loop's lag are from its metrics listener.
    """

    id: int
    address: str
    is_live: bool
    is_controller: bool
    leaders: int
    replicas: int
    records_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    disk_used_percent: float | None
    disk_free_bytes: int | None
    loop_lag_p99_ms: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic. ``records`` are those between the start and the end of its logs."""

    topic: str
    partitions: int
    records: int
    records_per_s: float | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group. ``growth_per_s`` is negative while it catches up; ``lag_seconds`` is that of its slowest partition."""

    group: str
    state: str
    members: int | None
    topics: int
    lag: int
    growth_per_s: float | None
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition that needs action."""

    topic: str
    partition: int
    problem: str
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """The cluster at one moment. Rows are sorted: what needs a look first comes first."""

    cluster_id: str | None = None
    controller: int = -1
    brokers: tuple[BrokerRow, ...] = ()
    topics: tuple[TopicRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    partitions: tuple[PartitionRow, ...] = ()
    # How many there are of each, whether shown or not.
    counts: Mapping[str, int] = field(default_factory=dict)
    records_per_s: float | None = None
    # What groups are sorted by: BY_LAG or BY_GROWTH.
    groups_by: str = BY_LAG
    # Why the last look failed, None when it did not.
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it for scripts."""
        document = asdict(self)
        for rows in ("brokers", "topics", "groups", "partitions"):
            document[rows] = list(document[rows])
        return document


def partition_problem(info: PartitionInfo, live: Iterable[int], min_insync_replicas: int | None) -> str | None:
    """Return what is wrong with a partition, None for nothing. ``min_insync_replicas``: None where it is not known."""
    if info.leader not in live:
        return OFFLINE
    if min_insync_replicas is not None and len(info.isr) < info.needed_in_sync(min_insync_replicas):
        return REFUSES
    return UNDER_REPLICATED if len(info.isr) < len(info.replicas) else None


def partition_rows(snapshot: ClusterSnapshot, min_insync_replicas: Mapping[str, int]) -> list[PartitionRow]:
    """Return the partitions that need action, the worst first."""
    found = [
        PartitionRow(name, info.partition, problem, info.leader, info.replicas, info.isr)
        for name, topic in snapshot.topics.items()
        for info in topic.partitions
        if (problem := partition_problem(info, snapshot.nodes, min_insync_replicas.get(name))) is not None
    ]
    found.sort(key=lambda row: (SEVERITY[row.problem], row.topic, row.partition))
    return found


def p99_ms(before: list[list[float | None]] | None, now: list[list[float | None]]) -> float | None:
    """Return the bound, in ms, of the bucket that holds the 99th percentile of what was counted between two looks.

    Buckets are (upper bound in seconds, count). None when nothing was counted.
    """
    counts = [
        (each[0], int(each[1] or 0) - int((before[number][1] if before else 0) or 0)) for number, each in enumerate(now)
    ]
    total = sum(count for _, count in counts)
    if total <= 0 or any(count < 0 for _, count in counts):
        return None
    seen = 0
    largest = 0.0
    for bound, count in counts:
        seen += count
        largest = bound * 1000 if bound is not None else largest
        if seen >= 0.99 * total:
            return largest
    return largest

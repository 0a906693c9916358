"""What brokers report of their logs of some partitions: damaged offsets, and followers that have stopped.

Only the broker that has a log knows that, so the command asks each broker. If one does not answer, only its own logs
are missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.printable import first_of

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.logs import LogDirInfo, ReplicaInfo
    from spark_kafkalite.client.network.metadata import PartitionInfo

_ASKED_MS: Final = 5_000
# Ranges of one log that a line names.
_NAMED: Final = 5

# By partition and broker.
ReplicaLogs = Mapping[TopicPartition, Mapping[int, "ReplicaInfo"]]


class DamagedLog(NamedTuple):
    """A damaged log, the ranges of offsets that it lacks (ends exclusive), and what the brokers do next.

    ``next`` is "" where nothing happens without a leader. ``leads_on``: no whole in-sync replica can take over.
    """

    partition: TopicPartition
    broker: int
    ranges: tuple[tuple[int, int], ...]
    next: str
    leads_on: bool


def ask_logs(admin: Admin, topics: Iterable[str], brokers: Iterable[int]) -> ReplicaLogs:
    """Return the logs that these brokers have of the topics, without those of brokers that do not answer."""
    names = set(topics)
    return logs_in(ask_directories(admin, names, brokers)) if names else {}


def ask_directories(admin: Admin, topics: Iterable[str] | None, brokers: Iterable[int]) -> dict[int, list[LogDirInfo]]:
    """Return the log directories of these brokers, with the logs of the topics (None: of all); without brokers that do
    not answer."""
    found: dict[int, list[LogDirInfo]] = {}
    names = None if topics is None else sorted(set(topics))
    for broker in brokers:
        with contextlib.suppress(KafkaliteError):
            found |= admin.describe_log_dirs([broker], topics=names, timeout_ms=_ASKED_MS)
    return found


def logs_in(directories: Mapping[int, Iterable[LogDirInfo]]) -> ReplicaLogs:
    """Return the logs in the brokers' log directories."""
    found: dict[TopicPartition, dict[int, ReplicaInfo]] = {}
    for broker, each in directories.items():
        for directory in each:
            for key, log in directory.replicas.items():
                found.setdefault(key, {})[broker] = log
    return found


def damaged_logs(
    logs: ReplicaLogs, partitions: Mapping[TopicPartition, PartitionInfo], live: Collection[int]
) -> list[DamagedLog]:
    """Return the damaged ones of the logs. ``live`` are the brokers that can be reached."""
    found = []
    for key, by_broker in sorted(logs.items()):
        damaged = {broker: log.damaged for broker, log in by_broker.items() if log.damaged}
        info = partitions.get(key)
        for broker, ranges in damaged.items():
            follows, leads_on = "", False
            if info is not None and info.leader in live:
                whole = [each for each in info.isr if each in live and each not in damaged]
                follows = _what_follows(broker, info, whole, leader_is_damaged=info.leader in damaged)
                leads_on = info.leader == broker and not whole
            found.append(DamagedLog(key, broker, ranges, follows, leads_on))
    return found


def _what_follows(broker: int, info: PartitionInfo, whole: Sequence[int], *, leader_is_damaged: bool) -> str:
    """Return what the brokers do about a damaged log, of a partition with a leader. ``whole`` are the in-sync replicas
    that live and are not damaged."""
    if info.leader == broker and whole:
        others = ", ".join(map(str, whole))
        return f"broker {broker} leaves the leadership to an in-sync broker ({others}), and copies these offsets"
    if info.leader == broker:
        return (
            f"broker {broker} leads on, and reads of these offsets get KAFKA_STORAGE_ERROR; a replica that has them "
            "leads as soon as it is in sync"
        )
    copies = f"broker {broker} copies these offsets from broker {info.leader}"
    if leader_is_damaged:
        return f"{copies}, which is damaged too, as soon as that lacks nothing from there on"
    return f"{copies}, which removes it from the ISR first" if broker in info.isr else copies


def ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    """Name ranges of offsets, whose ends are exclusive, in a sentence: the first five."""
    return first_of([f"{start}-{end - 1}" for start, end in ranges], _NAMED, "ranges")

"""What brokers report of their logs of some partitions: damaged offsets, and followers that have stopped.

Only the broker that has a log knows that, so the command asks each broker. If one does not answer, only its own logs
are missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.logs import LogDirInfo, ReplicaInfo

_ASKED_MS: Final = 5_000
# Ranges of one log that a line names.
_NAMED: Final = 5

# By partition and broker.
ReplicaLogs = Mapping[TopicPartition, Mapping[int, "ReplicaInfo"]]


def ask_logs(admin: Admin, topics: Iterable[str], brokers: Iterable[int]) -> ReplicaLogs:
    """Return the logs that these brokers have of the topics, without those of brokers that do not answer."""
    names = set(topics)
    return logs_in(ask_directories(admin, names, brokers)) if names else {}


def ask_directories(admin: Admin, topics: Iterable[str], brokers: Iterable[int]) -> dict[int, list[LogDirInfo]]:
    """Return the log directories of these brokers, with the logs of the topics; without brokers that do not answer."""
    found: dict[int, list[LogDirInfo]] = {}
    names = sorted(set(topics))
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


def ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    """Name ranges of offsets, whose ends are exclusive, in a sentence: the first five."""
    more = f" and {len(ranges) - _NAMED} more ranges" if len(ranges) > _NAMED else ""
    return ", ".join(f"{start}-{end - 1}" for start, end in ranges[:_NAMED]) + more

"""What brokers say of their logs of some partitions: which offsets are damaged, and which followers have stopped.

Only the broker that has a log knows that, so each is asked by itself; one that does not answer hides its own alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.logs import ReplicaInfo

_ASKED_MS: Final = 5_000
# Ranges of one log that a line names.
_NAMED: Final = 5

# By partition and broker.
ReplicaLogs = Mapping[TopicPartition, Mapping[int, "ReplicaInfo"]]


def ask_logs(admin: Admin, topics: Iterable[str], brokers: Iterable[int]) -> ReplicaLogs:
    """Return the logs that these brokers have of the topics; nothing of a broker that does not answer."""
    found: dict[TopicPartition, dict[int, ReplicaInfo]] = {}
    names = sorted(set(topics))
    for broker in brokers if names else ():
        try:
            directories = admin.describe_log_dirs([broker], topics=names, timeout_ms=_ASKED_MS)[broker]
        except KafkaliteError:
            continue
        for directory in directories:
            for key, log in directory.replicas.items():
                found.setdefault(key, {})[broker] = log
    return found


def ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    """Name ranges of offsets, whose ends are exclusive, in a sentence: the first five."""
    more = f" and {len(ranges) - _NAMED} more ranges" if len(ranges) > _NAMED else ""
    return ", ".join(f"{start}-{end - 1}" for start, end in ranges[:_NAMED]) + more

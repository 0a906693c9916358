"""Warns when records are written that the topic's retention may delete at once.

Retention uses a record's own timestamp. Replayed or imported records are often older than the default of seven days,
and vanish soon after they were sent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spark_kafkalite.cli.output import warn
from spark_kafkalite.errors import KafkaliteError

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin

_DAY_MS = 86_400_000


class RetentionWatch:
    """Counts the records that are past their topic's retention when they are sent."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._oldest_kept_ms: dict[str, int] = {}
        self._retention_ms: dict[str, int] = {}
        self._past: dict[str, int] = {}

    def note(self, topic: str, timestamp_ms: int) -> None:
        """Count a record with this timestamp that was sent; warn at once of a topic's first one that is too old."""
        oldest = self._oldest_kept_ms.get(topic)
        if oldest is None:
            oldest = self._oldest_kept_ms[topic] = self._ask(topic)
        if timestamp_ms >= oldest:
            return
        count = self._past[topic] = self._past.get(topic, 0) + 1
        if count == 1:
            retention = self._retention_ms[topic]
            warn(
                f"records for topic {topic} are older than its retention.ms={retention} "
                f"({retention / _DAY_MS:.1f} days): the broker may delete them at "
                "any time; to keep them, give the topic retention.ms=-1"
            )

    def report(self) -> None:
        """Print how many records of each topic were too old."""
        for topic, count in self._past.items():
            if count == 1:
                continue  # said already
            warn(f"{count} records for topic {topic} were older than its retention.ms")

    def _ask(self, topic: str) -> int:
        """Return the oldest timestamp that is kept; a cluster that does not answer counts as keeping everything."""
        try:
            configs = self._admin.describe_configs(topic=topic, timeout_ms=3_000)
        except KafkaliteError:
            return -(2**63)
        retention = configs["retention.ms"].value if "retention.ms" in configs else None
        policy = (configs["cleanup.policy"].value if "cleanup.policy" in configs else None) or "delete"
        self._retention_ms[topic] = int(retention) if retention else -1
        if "delete" not in policy or self._retention_ms[topic] < 0:
            return -(2**63)
        return time.time_ns() // 1_000_000 - self._retention_ms[topic]

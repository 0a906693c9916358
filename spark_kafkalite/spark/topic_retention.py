"""The settings of a topic for timestamps, as the cluster reports them: for warnings, never for decisions.

A process asks once a minute for a topic. A cluster that does not answer, or refuses, counts as one that keeps all
records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.spark.connections import admin_settings

_LOG = logging.getLogger("spark_kafkalite.spark")
_VALID_S: Final = 60.0
# A warning is not worth a long wait.
_TIMEOUT_MS: Final = 5_000


class TimestampRules(NamedTuple):
    """``retention_ms`` is -1 if the topic keeps everything, is compacted only, or is not known. ``is_replaced``: the
    broker writes its own time into records (``message.timestamp.type=LogAppendTime``)."""

    retention_ms: int = -1
    is_replaced: bool = False


_KNOWN: dict[tuple[str, str], tuple[float, TimestampRules]] = {}


def timestamp_rules(client: Mapping[str, str], topic: str) -> TimestampRules:
    """Return what the topic does with the timestamps of records."""
    key = (client.get("bootstrap.servers", ""), topic)
    known = _KNOWN.get(key)
    if known is None or time.monotonic() - known[0] > _VALID_S:
        known = _KNOWN[key] = (time.monotonic(), _asked(client, topic))
    return known[1]


def _asked(client: Mapping[str, str], topic: str) -> TimestampRules:
    # Imported by every Python worker of Spark, which seldom asks.
    from spark_kafkalite.client.admin.admin import Admin

    try:
        with Admin(admin_settings(client)) as admin:
            entries = admin.describe_configs(topic=topic, timeout_ms=_TIMEOUT_MS)
    except KafkaliteError as error:
        _LOG.debug("cannot ask for the retention of topic %s: %s", topic, error)
        return TimestampRules()
    configs = {name: entry.value for name, entry in entries.items()}
    is_replaced = configs.get("message.timestamp.type") == "LogAppendTime"
    if "delete" not in (configs.get("cleanup.policy") or "delete"):
        return TimestampRules(is_replaced=is_replaced)
    return TimestampRules(int(configs.get("retention.ms") or -1), is_replaced)

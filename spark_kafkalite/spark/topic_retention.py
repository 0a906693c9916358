"""A topic's retention, as far as the cluster tells it: for warnings, never for decisions.

Asked once a topic and minute in a process; a cluster that does not answer, or refuses, counts as one that keeps
everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.spark.connections import admin_settings

_LOG = logging.getLogger("spark_kafkalite.spark")
_KEEPS_EVERYTHING: Final = -1
_VALID_S: Final = 60.0
# A warning is not worth a long wait.
_TIMEOUT_MS: Final = 5_000
_KNOWN: dict[tuple[str, str], tuple[float, int]] = {}


def retention_ms(client: Mapping[str, str], topic: str) -> int:
    """Return the topic's ``retention.ms``, -1 when it keeps everything, is compacted only, or cannot be asked."""
    key = (client.get("bootstrap.servers", ""), topic)
    known = _KNOWN.get(key)
    if known is None or time.monotonic() - known[0] > _VALID_S:
        known = _KNOWN[key] = (time.monotonic(), _asked(client, topic))
    return known[1]


def _asked(client: Mapping[str, str], topic: str) -> int:
    # Imported by every Python worker of Spark, which seldom asks.
    from spark_kafkalite.client.admin.admin import Admin

    try:
        with Admin(admin_settings(client)) as admin:
            configs = admin.describe_configs(topic=topic, timeout_ms=_TIMEOUT_MS)
    except KafkaliteError as error:
        _LOG.debug("cannot ask for the retention of topic %s: %s", topic, error)
        return _KEEPS_EVERYTHING
    policy = configs["cleanup.policy"].value if "cleanup.policy" in configs else None
    if "delete" not in (policy or "delete"):
        return _KEEPS_EVERYTHING
    entry = configs.get("retention.ms")
    return _KEEPS_EVERYTHING if entry is None or not entry.value else int(entry.value)

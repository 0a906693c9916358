"""Declares the settings of the broker's metrics."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.settings import Setting

METRICS_SETTINGS: Final = (
    Setting(
        "metrics.listener",
        "string",
        None,
        "HOST:PORT on which the broker serves /metrics, /status, /livez and /readyz over HTTP. Port 0 picks a free "
        "port. When not set, the broker counts nothing. An address that other hosts reach needs metrics.token.file or "
        "metrics.listener.insecure.",
    ),
    Setting(
        "metrics.token.file",
        "string",
        None,
        "File with the token that /metrics and /status ask for (Authorization: Bearer TOKEN). The file may be replaced "
        "while the broker runs.",
    ),
    Setting(
        "metrics.listener.insecure",
        "boolean",
        False,
        "Whether metrics.listener may be an address that other hosts reach, without a token.",
    ),
    Setting(
        "metrics.max.series",
        "int",
        100_000,
        "Most series with labels in a scrape. kafkalite_metrics_dropped_series_total counts those left out.",
        minimum=100,
        maximum=10_000_000,
    ),
)

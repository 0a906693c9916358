"""The lag and the figures of streaming queries as JSON, and in Prometheus's text format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from spark_kafkalite.exposition.text import Kind, Page, labels
from spark_kafkalite.spark.watching.query_figures import SINK_SIDE, SOURCE_SIDE, Figures, QueryFigures
from spark_kafkalite.spark.watching.query_lag import QueryPartitionLag, QueryReport

_MOST_SERIES: Final = 100_000

_GAUGES: Final[tuple[tuple[str, str, Callable[[QueryPartitionLag], float | None]], ...]] = (
    ("kafkalite_query_lag", "Offsets that a streaming query has not read yet.", lambda each: each.lag),
    ("kafkalite_query_lag_seconds", "Age of the record that a streaming query reads next.", lambda each: each.seconds),
    ("kafkalite_query_offset", "The next offset that a streaming query will read.", lambda each: each.offset),
)
# Names behind kafkalite_query_; the sides that have the series; the text; the value.
_COUNTERS: Final[tuple[tuple[str, tuple[str, ...], str, Callable[[Figures], float]], ...]] = (
    ("tasks", (SOURCE_SIDE, SINK_SIDE), "Tasks of a streaming query.", lambda sums: sums.tasks),
    ("records", (SOURCE_SIDE, SINK_SIDE), "Records that tasks have read or written.", lambda sums: sums.records),
    ("bytes", (SOURCE_SIDE, SINK_SIDE), "Bytes of the record batches, as compressed.", lambda sums: sums.bytes),
    ("fetch_seconds", (SOURCE_SIDE,), "Time that fetches of tasks have taken.", lambda sums: sums.busy_ms / 1000),
    ("send_seconds", (SINK_SIDE,), "Time that tasks have encoded and handed over.", lambda sums: sums.busy_ms / 1000),
    ("wait_seconds", (SOURCE_SIDE, SINK_SIDE), "Time that tasks waited for brokers.", lambda sums: sums.wait_ms / 1000),
)


def as_json(
    lags: Iterable[QueryPartitionLag],
    figures: Iterable[QueryFigures] = (),
    rows: Mapping[str, int] | None = None,
    unseen: Mapping[str, int] | None = None,
    reports: Sequence[QueryReport] = (),
) -> str:
    """Return ``{"queries": [...]}``: each query with the sum of its lag, its largest lag in seconds, its partitions,
    and what it has read and written, by subscription and target. ``rows``: by query, the records that Spark counts;
    ``unseen``: those of them that lack in the figures; ``reports``: of running queries alone."""
    queries: dict[str, tuple[str | None, list[QueryPartitionLag], list[QueryFigures]]] = {}
    for lag in lags:
        queries.setdefault(lag.query_id, (lag.query_name, [], []))[1].append(lag)
    for each in figures:
        queries.setdefault(each.query_id, (each.query_name, [], []))[2].append(each)
    reported = {each.query_id: round(each.reported_s, 3) for each in reports}
    for report in reports:
        queries.setdefault(report.query_id, (report.query_name, [], []))
    return json.dumps(
        {
            "queries": [
                {
                    "query_id": query_id,
                    "query": name,
                    "lag": sum(lag.lag for lag in parts),
                    "lag_seconds": max((lag.seconds for lag in parts if lag.seconds is not None), default=None),
                    "partitions": [_partition(lag) for lag in parts],
                    "figures": [_figures(each) for each in found],
                    "input_rows": (rows or {}).get(query_id, 0),
                    "unseen_records": (unseen or {}).get(query_id, 0),
                    "report_timestamp": reported.get(query_id),
                }
                for query_id, (name, parts, found) in queries.items()
            ]
        }
    )


def _partition(lag: QueryPartitionLag) -> dict[str, Any]:
    return {
        "group_id": lag.group_id,
        "topic": lag.topic,
        "partition": lag.partition,
        "offset": lag.offset,
        "end_offset": lag.end_offset,
        "lag": lag.lag,
        "lag_seconds": lag.seconds,
    }


def _figures(each: QueryFigures) -> dict[str, Any]:
    return {
        "side": each.side,
        "subject": each.subject,
        "batch_id": each.batch_id,
        "batch": _sums(each.side, each.batch),
        "total": _sums(each.side, each.total),
    }


def _sums(side: str, sums: Figures) -> dict[str, int]:
    found = sums._asdict()
    found["fetch_ms" if side == SOURCE_SIDE else "send_ms"] = found.pop("busy_ms")
    return found


def as_prometheus(
    lags: Iterable[QueryPartitionLag],
    figures: Iterable[QueryFigures] = (),
    rows: Mapping[str, int] | None = None,
    unseen: Mapping[str, int] | None = None,
    reports: Sequence[QueryReport] = (),
) -> str:
    """Return all in Prometheus's text format: lags as gauges, figures as counters. What is not known is left out."""
    lags, figures, rows, unseen = list(lags), list(figures), rows or {}, unseen or {}
    page = Page(_MOST_SERIES)
    for name, text, value_of in _GAUGES:
        page.family(name, "gauge", text)
        for lag in lags:
            if (value := value_of(lag)) is not None:
                page.add(name, _labels(lag), value)
    if reports:
        name = "kafkalite_query_report_timestamp_seconds"
        text = "When Spark last reported a running query: its start, a batch, or nothing to do. Since 1970."
        page.family(name, "gauge", text)
        for report in reports:
            said = labels(query=report.query_name or report.query_id, query_id=report.query_id)
            page.add(name, said, round(report.reported_s, 3))
    names = {lag.query_id: lag.query_name for lag in lags} | {each.query_id: each.query_name for each in figures}
    of_progress: tuple[tuple[str, Kind, str, Mapping[str, int]], ...] = (
        (
            "kafkalite_query_input_rows_total",
            "counter",
            "Records that Spark's progress counts of sources of this format, from all hosts.",
            rows,
        ),
        (
            "kafkalite_query_unseen_records",
            "gauge",
            "Input rows whose tasks have reported no figures, as on other hosts: what side source lacks.",
            unseen,
        ),
    )
    for name, kind, text, counts in of_progress:
        if figures or any(counts.values()):
            page.family(name, kind, text)
            for query_id, count in counts.items():
                page.add(name, labels(query=names.get(query_id) or query_id, query_id=query_id), count)
    if not figures:
        return page.text()
    for subject, sides, text, sum_of in _COUNTERS:
        name = f"kafkalite_query_{subject}_total"
        page.family(name, "counter", text)
        for each in figures:
            if each.side in sides:
                page.add(name, _labels_of_figures(each), sum_of(each.total))
    return page.text()


def _labels(lag: QueryPartitionLag) -> str:
    return labels(
        query=lag.query_name or lag.query_id,
        query_id=lag.query_id,
        consumergroup=lag.group_id or "",
        topic=lag.topic,
        partition=lag.partition,
    )


def _labels_of_figures(each: QueryFigures) -> str:
    return labels(query=each.query_name or each.query_id, query_id=each.query_id, side=each.side, subject=each.subject)

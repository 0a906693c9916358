"""A batch that hangs: the listener's series go on, and Prometheus fires the alerts of conf/alerts.yml."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import Row

from spark_kafkalite.spark import install_listener
from tests.interop.monitoring.prometheus_server import Prometheus, need_prometheus
from tests.patience import wait_until

from .topics import Topics

IDLE_REPORTS = "spark.sql.streaming.noDataProgressEventInterval"
pytestmark = [pytest.mark.spark, pytest.mark.debian]


def test_a_batch_that_hangs_fires_the_alerts_of_queries(topics: Topics, checkpoint: str, tmp_path: Path) -> None:
    need_prometheus()
    listener = install_listener(topics.spark)
    topic = topics.new()
    hangs, may_end = threading.Event(), threading.Event()

    def take(batch_id: int, rows: list[Row]) -> None:
        if batch_id > 0:
            hangs.set()
            may_end.wait()

    topics.fill(topic, range(5))
    # A query with nothing to do is reported each second, and does not look as if it hung.
    topics.spark.conf.set(IDLE_REPORTS, "1s")
    query, _ = topics.collect(topics.stream(topic), checkpoint, {"processingTime": "0 seconds"}, take)
    host, port = listener.serve()
    try:
        # Spark's last report has no lag, and no more reports come.
        wait_until(
            lambda: [each.lag for each in listener.lag if each.topic == topic] == [0], "the first batch's report"
        )
        with Prometheus(tmp_path / "prometheus", {"kafkalite-spark": [f"{host}:{port}"]}) as prometheus:
            wait_until(lambda: prometheus.query("count(up == 1)") == [({}, 1.0)], "the listener's page")
            prometheus.wait_for_peace()
            topics.fill(topic, range(3), timestamp_ms=1_000)
            wait_until(hangs.is_set, "the second batch")
            prometheus.wait_for("KafkaliteQueryLag", "KafkaliteQueryHangs")
            assert prometheus.query(f'sum(kafkalite_query_lag{{topic="{topic}"}})') == [({}, 3.0)]
            may_end.set()
            prometheus.wait_for_peace()
    finally:
        may_end.set()
        query.stop()
        topics.spark.conf.unset(IDLE_REPORTS)

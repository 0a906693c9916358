"""A broker whose clock is a day ahead of the others: it deletes nothing early, and says so."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.broker.test_metrics import METRICS, scraped, value
from tests.interop.cluster.day_ahead import DAY_MS
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until

HOUR_MS = 3_600_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
# Records of the age that is deleted, and as many of now.
EACH = 60


def test_a_broker_whose_clock_is_a_day_ahead_deletes_nothing_early(tmp_path: Path) -> None:
    ahead = (sys.executable, "-m", "tests.interop.cluster.day_ahead")
    intervals = ("log.initial.task.delay.ms", "log.retention.check.interval.ms")
    settings = {**METRICS, "log.retention.hours": 12, **dict.fromkeys(intervals, 200)}
    with (
        KafkaliteCluster(
            tmp_path,
            size=2,
            overrides=settings,
            environment={"PYTHONPATH": str(PROJECT)},
            command_prefix_of={1: ahead},
        ) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer,
        Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
    ):
        # One partition has a leader with each clock.
        configs = {"segment.bytes": "20000"}
        admin.create_topics([NewTopic("t", assignments={0: [1, 2], 1: [2, 1]}, configs=configs)])
        now_ms = int(time.time() * 1000)
        for age_ms in (13 * HOUR_MS, 0):
            for number in range(2 * EACH):
                producer.send("t", b"x" * 1000, partition=number % 2, timestamp_ms=now_ms - age_ms)
                producer.flush(PATIENCE_S)
        wait_until(
            lambda: all(consumer.beginning_offsets([T0, T1]).values()), "the records of thirteen hours ago to go"
        )
        # Whole segments go. Those that also have a record of now stay, and all of the later ones.
        assert all(0 < start <= EACH for start in consumer.beginning_offsets([T0, T1]).values())
        said = cluster.broker(1).stderr_path.read_text()
        # A slow host may stand still after the registry has read its clock, before the broker reads its own.
        ahead = re.search(r"the clock of this host is (\d+) s ahead of that of the registry", said)
        assert ahead is not None and abs(1000 * int(ahead[1]) - DAY_MS) < HOUR_MS
        assert "the clock of this host" not in cluster.broker(2).stderr_path.read_text()
        for number, seconds in ((1, DAY_MS / 1000), (2, 0)):
            shown = value(scraped(cluster.broker(number)), "kafkalite_registry_clock_ahead_seconds")
            assert abs(shown - seconds) < HOUR_MS / 1000

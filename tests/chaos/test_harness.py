"""The clients, the reading of files and the judge together, where they must find nothing: one broker of ours that is
killed, and three of Apache Kafka.

``KAFKALITE_SOAK=1`` runs Apache Kafka, which takes a minute.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spark_kafkalite.testing import apache_kafka
from spark_kafkalite.testing.apache_kafka import ApacheKafkaCluster
from spark_kafkalite.testing.cluster import BrokerProcess
from tests.chaos.clients.producers import compile_java_producer
from tests.chaos.final_logs import logs_of
from tests.chaos.history import Fault, HistoryWriter
from tests.chaos.judge import Verdict, judge_files
from tests.chaos.workload import Workload, make_topic
from tests.conftest import fetch_or_skip

_NODES = ["ours", "apache"] if os.environ.get("KAFKALITE_SOAK") else ["ours"]
_STEADY_S = 2.0


def run(
    directory: Path,
    brokers: Mapping[int, str],
    log_directories: Mapping[int, Path],
    play: Callable[[], None],
    stop: Callable[[], None],
    java_class_path: str | None = None,
    **asked: float,
) -> Verdict:
    """Have the workload run while ``play`` does something to the brokers; judge what comes of it."""
    with HistoryWriter(directory / "history.jsonl") as history:
        bootstrap = ",".join(brokers.values())
        place = make_topic(bootstrap, brokers, "rows", history, replicas=len(brokers))
        workload = Workload(place, directory, java_class_path)
        try:
            workload.start()
            begun = time.monotonic()
            play()
            history.note(Fault(name=play.__name__, begun=begun, ended=time.monotonic(), settle_s=_STEADY_S, **asked))
            time.sleep(_STEADY_S)
            workload.finish()
        finally:
            workload.stop()
        stop()
        for number, path in log_directories.items():
            history.note(*logs_of(number, path, {place.topic_id: place.topic}))
    return judge_files([history.path])


def _kill_ours(directory: Path) -> Verdict:
    broker = BrokerProcess(directory / "broker")

    def kill_and_start() -> None:
        time.sleep(_STEADY_S)
        broker.kill()
        broker.start()

    with broker:
        return run(
            directory, {1: broker.bootstrap}, {1: broker.data_dir}, kill_and_start, broker.stop,
            longest_gap_s=10, isr_within_s=10, acks_at_least=20,
        )  # fmt: skip


def _kill_apaches(directory: Path) -> Verdict:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(apache_kafka.jars.APACHE_KAFKA)
    overrides = {
        "min.insync.replicas": "2",
        "default.replication.factor": "3",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
    with ApacheKafkaCluster(directory / "kafka", overrides=overrides) as cluster:

        def kill_and_start() -> None:
            time.sleep(_STEADY_S)
            cluster.nodes[2].kill()
            time.sleep(4)
            cluster.nodes[2].start()

        return run(
            directory,
            {number: node.bootstrap for number, node in cluster.nodes.items()},
            {number: node.log_directory for number, node in cluster.nodes.items()},
            kill_and_start,
            cluster.stop,
            compile_java_producer(directory / "java"),
            longest_gap_s=15,
            isr_within_s=30,
            acks_at_least=100,
        )


@pytest.mark.slow
@pytest.mark.parametrize("nodes", _NODES)
def test_a_broker_is_killed(nodes: str, tmp_path: Path) -> None:
    verdict = _kill_ours(tmp_path) if nodes == "ours" else _kill_apaches(tmp_path)
    assert not verdict.violations, verdict.text()
    # It has looked at something.
    assert verdict.figures["acknowledged"] > 500 and verdict.figures["shown"] > 1500, verdict.text()

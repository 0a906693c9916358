"""Each alert of conf/alerts.yml fires in Prometheus itself by a real fault; a whole cluster fires none."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import yaml

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.client.test_exporter import exporter
from tests.interop.cluster.failing_disk import filled_by, hung_by, unflushed_by
from tests.interop.log.test_compaction import COMPACT, cleaners_of
from tests.interop.monitoring.prometheus_server import CONF, Prometheus, need_prometheus
from tests.interop.security.test_broker_tls import TlsBroker
from tests.lab.certificates import LOOPBACK
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.debian]
TOKEN: Final = "a-token-of-thirty-two-characters"
HOUR_MS: Final = 3_600_000
# Alerts that this host may raise by itself: its disk may be nearly full, and it has little processor time for tests.
OF_THE_HOST: Final = {"KafkaliteDiskLow", "KafkaliteDiskFullSoon", "KafkaliteEventLoopLate"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaliteCluster]:
    need_prometheus()
    data_dir = tmp_path_factory.mktemp("alerts")
    token = data_dir / "token"
    token.write_text(TOKEN)
    disks = f"{data_dir}/broker-3/one,{data_dir}/broker-3/two"
    with KafkaliteCluster(
        data_dir,
        overrides={
            "zookeeper.session.timeout.ms": 6_000,
            "metrics.token.file": token,
            "log.cleaner.backoff.ms": 200,
            "log.initial.task.delay.ms": 86_400_000,
        },
        overrides_of={
            number: {"metrics.listener": f"127.0.0.1:{port}"} | ({"log.dirs": disks} if number == 3 else {})
            for number, port in enumerate(free_ports(3), 1)
        },
        environment={"PYTHONPATH": str(PROJECT)},
        command_prefix_of={3: (sys.executable, "-m", "tests.interop.cluster.failing_disk")},
    ) as running:
        yield running


@pytest.fixture(scope="module")
def watched(cluster: KafkaliteCluster) -> Iterator[Prometheus]:
    """Prometheus, on the brokers and an exporter."""
    brokers = [broker.metrics_url.removeprefix("http://") for broker in cluster.brokers.values()]
    with (
        exporter(cluster.bootstrap) as url,
        Prometheus(
            cluster.data_dir / "prometheus",
            {"kafkalite": brokers, "kafkalite-exporter": [url.split("/")[2]]},
            cluster.data_dir / "token",
        ) as prometheus,
    ):
        wait_until(lambda: prometheus.query("count(up == 1)") == [({}, 4.0)], "four targets")
        yield prometheus


@pytest.fixture
def prometheus(cluster: KafkaliteCluster, watched: Prometheus) -> Iterator[Prometheus]:
    """Prometheus, at peace; what a test stops is brought back after it."""
    watched.wait_for_peace(*OF_THE_HOST)
    yield watched
    for broker in cluster.brokers.values():
        if not broker.running:
            broker.start()
    cluster.wait_in_sync()


def produce(cluster: KafkaliteCluster, topic: str, count: int, *, partition: int = 0, age_ms: int = 0) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
        for number in range(count):
            now_ms = int(time.time() * 1000) - age_ms
            producer.send(topic, b"x" * 900, key=b"%d" % (number % 7), partition=partition, timestamp_ms=now_ms)
            if number % 40 == 39:
                producer.flush()


def on_broker_3(cluster: KafkaliteCluster, pattern: str) -> list[Path]:
    return sorted((cluster.data_dir / "broker-3").glob(f"*/{pattern}"))


def test_a_group_that_stands_still_is_behind(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("orders", 1, 3)
        produce(cluster, "orders", 80, age_ms=HOUR_MS)
        admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 5})
        prometheus.wait_for("KafkaliteGroupLag", "KafkaliteGroupStopped")
        (lag,) = prometheus.query('kafka_consumergroup_lag{consumergroup="billing"}')
        assert lag[1] == 75
        admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 80})
    prometheus.wait_for_peace(*OF_THE_HOST)


def test_a_broker_dies(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("alone", 6, 1)
        admin.create_topic("both", 6, 2, {"min.insync.replicas": "2"})
    cluster.wait_in_sync("alone", "both")
    cluster.kill(3)
    prometheus.wait_for(
        "KafkaliteBrokerDown", "KafkalitePartitionOffline", "KafkaliteUnderReplicated", "KafkaliteUnderMinIsr"
    )
    cluster.restart(3)
    prometheus.wait_for_peace(*OF_THE_HOST)


def test_the_controller_dies(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    controller = cluster.controller()
    assert controller is not None
    cluster.kill(controller)
    # Its place stays empty: others would take it before a busy host has looked.
    cluster.registry.stop()
    try:
        prometheus.wait_for("KafkaliteNoController")
    finally:
        cluster.registry.start()


def test_the_registry_is_away(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    cluster.registry.stop()
    try:
        prometheus.wait_for("KafkaliteRegistrySessionLost")
    finally:
        cluster.registry.start()


def test_a_broker_loads_its_logs(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    cluster.kill(3)
    for disk in cluster.data_dir.glob("broker-3/*"):
        hung_by(disk).touch()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(cluster.broker(3).start)
        try:
            prometheus.wait_for("KafkaliteRecoveryRunning")
        finally:
            for hung in cluster.data_dir.glob("broker-3/*-hung"):
                hung.unlink()
        started.result(PATIENCE_S)


def test_a_disk_is_full_and_then_fails(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("stored", 1, 3, {"flush.messages": "1"})
    cluster.wait_in_sync("stored")
    # In sync by the registry is a replica, too, that has not heard of the topic yet.
    (log,) = wait_until(lambda: on_broker_3(cluster, "stored-0"), "the log at broker 3")
    disk = log.parent
    filled_by(disk).touch()
    try:
        produce(cluster, "stored", 5)
        prometheus.wait_for("KafkaliteDiskRefuses")
    finally:
        filled_by(disk).unlink()
    prometheus.wait_for_peace(*OF_THE_HOST)
    unflushed_by(disk).touch()
    try:
        produce(cluster, "stored", 5)
        prometheus.wait_for("KafkaliteDiskOffline", "KafkaliteFlushFailed")
    finally:
        unflushed_by(disk).unlink()
        cluster.restart(3)


def cut_first_segment(cluster: KafkaliteCluster, log: str) -> None:
    segments = on_broker_3(cluster, f"{log}/*.log")
    assert len(segments) > 2
    with segments[0].open("r+b") as file:
        file.truncate(segments[0].stat().st_size // 2)


def test_the_only_replica_that_is_left_is_damaged(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("pair", 6, 2, {"segment.bytes": "20000", "min.insync.replicas": "1"})
    cluster.wait_in_sync("pair")
    number = next(number for number in range(6) if 3 in cluster.in_sync("pair", number))
    produce(cluster, "pair", 100, partition=number)
    cluster.wait_in_sync("pair")
    (other,) = cluster.in_sync("pair", number) - {3}
    cluster.stop(other)
    wait_until(lambda: cluster.leader_of("pair", number) == 3, "the last replica to lead")
    cut_first_segment(cluster, f"pair-{number}")
    with Consumer(bootstrap_servers=cluster.broker(3).bootstrap) as consumer:
        consumer.assign([TopicPartition("pair", number)])
        consumer.seek_to_beginning()
        consumer.poll(1000)
        prometheus.wait_for("KafkaliteDamagedReplica")
    cluster.restart(other)
    cluster.wait_in_sync("pair")


def test_a_compacted_log_is_damaged(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("damaged", 1, 3, COMPACT | {"max.compaction.lag.ms": str(HOUR_MS)})
        produce(cluster, "damaged", 200)
        cluster.wait_in_sync("damaged")
        cut_first_segment(cluster, "damaged-0")
        prometheus.wait_for("KafkaliteLogNotCleaned")
        admin.delete_topics(["damaged"])


@contextlib.contextmanager
def standing_cleaner(broker: int) -> Iterator[None]:
    """Stop a broker's cleaner process, and each process that takes its place.

    The broker ends a process that has had nothing to do for a while, stopped or not, and starts another one for its
    next log: stopping the one of now alone would stop nothing at times.
    """
    is_over = threading.Event()
    stopped: set[int] = set()

    def stop() -> None:
        while not is_over.wait(0.02):
            for child in cleaners_of(broker):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGSTOP)
                stopped.add(child)

    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop)
        try:
            wait_until(lambda: stopped, "a cleaner's process")
            yield
        finally:
            is_over.set()
            stopping.result(PATIENCE_S)
            for child in stopped & set(cleaners_of(broker)):
                os.kill(child, signal.SIGCONT)


def test_the_cleaner_stops(cluster: KafkaliteCluster, prometheus: Prometheus) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("compacted", 1, 3, COMPACT)
        produce(cluster, "compacted", 200)
        with standing_cleaner(cluster.broker(3).pid):
            produce(cluster, "compacted", 200)
            prometheus.wait_for("KafkaliteCleanerStopped")
        admin.delete_topics(["compacted"])


def test_a_certificate_ends(tmp_path: Path) -> None:
    need_prometheus()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    secured = TlsBroker(tmp_path / "broker", metrics_listener="127.0.0.1:0")
    with secured.process as broker:
        targets = {"kafkalite": [broker.metrics_url.removeprefix("http://")]}
        with Prometheus(tmp_path / "prometheus", targets, token) as watched:
            wait_until(lambda: watched.query("count(up == 1)") == [({}, 1.0)], "the target")
            watched.wait_for_peace(*OF_THE_HOST)
            secured.replace_certificate(secured.authority.issue("broker", *LOOPBACK, days=3))
            os.kill(broker.pid, signal.SIGHUP)
            watched.wait_for("KafkaliteCertificateEnds")
            secured.replace_certificate(secured.authority.issue("broker", *LOOPBACK))
            os.kill(broker.pid, signal.SIGHUP)
            watched.wait_for_peace(*OF_THE_HOST)


def test_the_rules_by_their_inputs(tmp_path: Path) -> None:
    """Checks the thresholds and the waits, which the faults above shorten; each alert is in a case."""
    need_prometheus()
    rules = [rule for group in yaml.safe_load((CONF / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    # What is to be done is the same for all inputs, and is not in the cases.
    advice = {rule["alert"]: rule["annotations"]["description"] for rule in rules}
    wanted = yaml.safe_load((PROJECT / "tests/interop/monitoring/alert_cases.yml").read_text())
    wanted["rule_files"] = [str(CONF / "alerts.yml")]
    named = set()
    for case in wanted["tests"]:
        for each in case["alert_rule_test"]:
            for alert in each["exp_alerts"]:
                named.add(each["alertname"])
                alert["exp_annotations"]["description"] = advice[each["alertname"]]
    assert named == set(advice)
    cases = tmp_path / "cases.yml"
    cases.write_text(yaml.safe_dump(wanted))
    promtool = shutil.which("promtool")
    assert promtool is not None
    checked = subprocess.run([promtool, "test", "rules", cases], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr

"""``kafkalite exporter`` on real clusters: kafka_exporter's names, what fails, and who may read."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.offset_stores.registry import RegistryOffsets
from spark_kafkalite.client.registry_link import ZooKeeperLink
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.lab.secure_kafka import SCRAM_512, SecuredListener, SecureKafka
from tests.patience import PATIENCE_S, wait_until

HOSTILE = 'a "group" \\ of\nhostile ☃ names}'
TOKEN = "a-token-of-thirty-two-characters"
# What kafka_exporter's board 7589 and Strimzi's board of it ask for.
BOARD = {
    "kafka_brokers": set(),
    "kafka_broker_info": {"id", "address"},
    "kafka_topic_partitions": {"topic"},
    "kafka_topic_partition_current_offset": {"topic", "partition"},
    "kafka_topic_partition_oldest_offset": {"topic", "partition"},
    "kafka_topic_partition_leader": {"topic", "partition"},
    "kafka_topic_partition_replicas": {"topic", "partition"},
    "kafka_topic_partition_in_sync_replica": {"topic", "partition"},
    "kafka_topic_partition_leader_is_preferred": {"topic", "partition"},
    "kafka_topic_partition_under_replicated_partition": {"topic", "partition"},
    "kafka_consumergroup_members": {"consumergroup"},
    "kafka_consumergroup_current_offset": {"consumergroup", "topic", "partition"},
    "kafka_consumergroup_current_offset_sum": {"consumergroup", "topic"},
    "kafka_consumergroup_lag": {"consumergroup", "topic", "partition"},
    "kafka_consumergroup_lag_sum": {"consumergroup", "topic"},
    "kafka_consumergroup_lag_seconds": {"consumergroup", "topic", "partition"},
}
Labels = frozenset[tuple[str, str]]


@contextlib.contextmanager
def exporter(bootstrap: str, *arguments: str) -> Iterator[str]:
    """Run an exporter; give the address of its page."""
    command = [sys.executable, "-m", "spark_kafkalite.cli", "exporter", "--bootstrap-server", bootstrap]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("kafkalite exporter ready on http://"), line + process.stderr.read()
            yield line.split()[-1]
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
            assert "Traceback" not in process.stderr.read()


def asked(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scraped(url: str) -> dict[str, dict[Labels, float]]:
    status, text = asked(url)
    assert status == 200, text
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(family.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def value(found: dict[str, dict[Labels, float]], name: str, **labels: object) -> float | None:
    return found.get(name, {}).get(frozenset((key, str(each)) for key, each in labels.items()))


def test_a_cluster_under_kafka_exporters_names(bootstrap: str, topic: str) -> None:
    group = f"{HOSTILE} of {topic}"
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(40):
            producer.send(topic, b"x", partition=number % 2, timestamp_ms=int(time.time() * 1000) - 60_000)
        producer.flush()
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 20, TopicPartition(topic, 1): 5})
        with exporter(bootstrap) as url:
            found = scraped(url)
            assert set(BOARD) - set(found) == set()
            for name, labels in BOARD.items():
                assert {frozenset(key for key, _ in each) for each in found[name]} == {frozenset(labels)}, name
            assert value(found, "kafka_brokers") == 1
            assert value(found, "kafka_broker_info", id=1, address=bootstrap) == 1
            assert value(found, "kafka_topic_partitions", topic=topic) == 4
            at = {"consumergroup": group, "topic": topic}
            seen = [
                (
                    value(found, "kafka_topic_partition_current_offset", topic=topic, partition=number),
                    value(found, "kafka_consumergroup_current_offset", **at, partition=number),
                    value(found, "kafka_consumergroup_lag", **at, partition=number),
                )
                for number in range(4)
            ]
            assert seen == [(20, 20, 0), (20, 5, 15), (0, -1, -1), (0, -1, -1)]
            # The sum of offsets has the -1 of what was never committed, the sum of lags has not: as kafka_exporter.
            assert value(found, "kafka_consumergroup_current_offset_sum", **at) == 23
            assert value(found, "kafka_consumergroup_lag_sum", **at) == 15
            assert value(found, "kafka_consumergroup_lag_seconds", **at, partition=0) == 0
            age = value(found, "kafka_consumergroup_lag_seconds", **at, partition=1)
            assert age is not None and 60 <= age < 60 + PATIENCE_S
            assert value(found, "kafka_consumergroup_lag_seconds", **at, partition=2) is None
            assert value(found, "kafka_consumergroup_members", consumergroup=group) == 0
            assert value(found, "kafkalite_exporter_broker_answers", id=1) == 1
            # Deleted between two scrapes: neither its series nor its group's stay.
            admin.delete_topics([topic])
            wait_until(lambda: value(scraped(url), "kafka_topic_partitions", topic=topic) is None, "its end")
            wait_until(lambda: value(scraped(url), "kafka_consumergroup_lag_sum", **at) is None, "the end of its lag")


def test_members_and_filters(bootstrap: str, topic: str) -> None:
    with Consumer(bootstrap_servers=bootstrap, group_id=f"shown-{topic}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(timeout_ms=100) or consumer.assignment(), "an assignment")
        consumer.commit({TopicPartition(topic, 0): 0})
        with exporter(
            bootstrap, "--topic-filter", f"^{topic}$", "--group-filter", "^shown-", "--group-exclude", "x$"
        ) as url:
            found = scraped(url)
    assert {dict(each)["topic"] for each in found["kafka_topic_partitions"]} == {topic}
    assert value(found, "kafka_consumergroup_members", consumergroup=f"shown-{topic}") == 1
    groups = {dict(each)["consumergroup"] for each in found["kafka_consumergroup_lag"]}
    assert f"shown-{topic}" in groups and all(each.startswith("shown-") for each in groups)


def test_many_scrapers_and_slow_ones_that_hold_up_nobody(bootstrap: str, topic: str) -> None:
    with exporter(bootstrap) as url, ThreadPoolExecutor(8) as threads:
        host, port = url.removeprefix("http://").partition("/")[0].split(":")
        with contextlib.ExitStack() as idle:
            for _ in range(10):
                slow = idle.enter_context(socket.create_connection((host, int(port))))
                slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            pages = list(threads.map(lambda _: asked(url), range(60)))
        assert {status for status, _ in pages} == {200}


def test_the_limit_of_series_is_kept_and_told(bootstrap: str, topic: str) -> None:
    with exporter(bootstrap, "--max-series", "5") as url:
        found = scraped(url)
    left_out = value(found, "kafkalite_exporter_series_left_out")
    assert left_out is not None and left_out > 0
    assert sum(len(series) for series in found.values() if any(series)) <= 5 + 10


def test_a_token_and_names_of_hosts(bootstrap: str, topic: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with exporter(bootstrap, "--token-file", str(token)) as url:
        assert asked(url)[0] == 401
        assert asked(url, {"Authorization": f"Bearer {TOKEN}x"})[0] == 401
        assert asked(url, {"Authorization": f"Bearer {TOKEN}"})[0] == 200
        assert asked(url, {"Host": "attacker.example"})[0] == 421
        assert asked(url.replace("/metrics", "/livez"))[0] == 200
        assert asked(url.replace("/metrics", "/elsewhere"))[0] == 404


def test_offsets_in_the_registry(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, registry_port=0) as broker:
        with (
            Admin(bootstrap_servers=broker.bootstrap) as admin,
            Producer(bootstrap_servers=broker.bootstrap) as producer,
        ):
            admin.create_topic("streamed", 2)
            for _ in range(7):
                producer.send("streamed", b"x", partition=1)
        link = ZooKeeperLink(broker.registry_connect)
        RegistryOffsets(link, "old-consumers").write({TopicPartition("streamed", 1): CommittedOffset(2)})
        store = link.close()
        assert store is not None
        store.close()
        with exporter(broker.bootstrap, "--zookeeper", broker.registry_connect) as url:
            found = scraped(url)
        at = {"consumergroup": "old-consumers", "topic": "streamed", "partition": 1}
        assert value(found, "kafka_consumergroupzookeeper_lag_zookeeper", **at) == 5
        assert value(found, "kafkalite_exporter_registry_answers") == 1
        # Nothing answers there.
        with exporter(broker.bootstrap, "--zookeeper", "127.0.0.1:1", "--scrape-timeout-ms", "2000") as url:
            assert value(scraped(url), "kafkalite_exporter_registry_answers") == 0


def test_an_address_that_others_reach_is_refused_without_a_token() -> None:
    command = [sys.executable, "-m", "spark_kafkalite.cli", "exporter", "--listen", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "kafkalite: --listen=0.0.0.0:0: other hosts reach this address, and would read the names of topics. Set "
        "--token-file=FILE, which scrapers send as a bearer token, or --insecure\n"
    )


@pytest.mark.kafka
def test_a_secured_cluster(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    settings = secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512)
    address = settings.pop("bootstrap.servers")
    file = tmp_path / "client.properties"
    lines = {name: text.replace("\\", "\\\\").replace("\n", "\\n") for name, text in settings.items()}
    file.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
    file.chmod(0o600)
    with exporter(address, "--command-config", str(file)) as url:
        assert value(scraped(url), "kafka_brokers") == 1


def test_brokers_that_end_or_hang(tmp_path: Path) -> None:
    with KafkaliteCluster(tmp_path) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topic("spread", 6, replication_factor=1)
            for number in range(20):
                admin.alter_group_offsets(f"group-{number}", {TopicPartition("spread", number % 6): 0})
        with exporter(cluster.bootstrap, "--scrape-timeout-ms", "5000") as url:
            # On a slow host the first scrape may be over before all brokers have answered.
            wait_until(lambda: len(scraped(url).get("kafka_consumergroup_lag_sum", {})) == 20, "all groups")
            led = [cluster.leader_of("spread", number) for number in range(6)]
            cluster.pause(3)
            try:
                found = wait_until(
                    lambda: value(now := scraped(url), "kafkalite_exporter_broker_answers", id=3) in (0, None) and now,
                    "a scrape without broker 3",
                )
                for number, leader in enumerate(led):
                    if leader in (1, 2):
                        at = {"topic": "spread", "partition": number}
                        assert value(found, "kafka_topic_partition_current_offset", **at) == 0
            finally:
                cluster.resume(3)
            wait_until(lambda: value(scraped(url), "kafkalite_exporter_broker_answers", id=3) == 1, "its return")
            for number in (1, 2, 3):
                cluster.kill(number)
            wait_until(lambda: asked(url)[0] == 503, "the end of the cluster")
            assert "no broker answers" in asked(url)[1]

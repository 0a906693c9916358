"""Metrics and probes of real brokers: what is served, to whom, and what it says while brokers start, fail and stop."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import MessageTooLarge
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire import packed
from tests.interop.support.collect import collected
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until

METRICS = {"metrics.listener": "127.0.0.1:0", "group.initial.rebalance.delay.ms": 0}
TOKEN = "a-token-of-thirty-two-characters"
Labels = frozenset[tuple[str, str]]


def asked(url: str, **headers: str) -> tuple[int, bytes]:
    """Return status and body of a GET."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def scraped(broker: BrokerProcess) -> dict[str, dict[Labels, float]]:
    """Return the values of a scrape, by family and labels (histograms: their counts)."""
    status, body = asked(f"{broker.metrics_url}/metrics")
    assert status == 200
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            if family.type != "histogram" or sample.name.endswith("_count"):
                found.setdefault(family.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def scraped_anew(broker: BrokerProcess) -> dict[str, dict[Labels, float]]:
    """Return a scrape that was begun after this call: a page serves scrapes for a second."""
    first = value(scraped(broker), "process_cpu_seconds")
    found: dict[str, dict[Labels, float]] = {}

    def is_another() -> bool:
        found.update(scraped(broker))
        return value(found, "process_cpu_seconds") > first

    wait_until(is_another, "another page")
    return found


def value(found: dict[str, dict[Labels, float]], name: str, **labels: object) -> float:
    return found[name][frozenset((key, str(each)) for key, each in labels.items())]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("metrics"), overrides=METRICS) as running:
        yield running


def test_what_clients_do_is_counted(broker: BrokerProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("orders", 2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(50):
            producer.send("orders", b"x" * 100, partition=number % 2)
    group = 'a "group" \\ of\nhostile ☃ names'
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        assert len(collected(lambda: consumer.poll(timeout_ms=200), 50)) == 50
        found = scraped_anew(broker)
    assert value(found, "kafka_server_brokertopicmetrics_messagesin", topic="orders") == 50
    bytes_in = value(found, "kafka_server_brokertopicmetrics_bytesin", topic="orders")
    assert bytes_in > 5000
    assert value(found, "kafka_server_brokertopicmetrics_bytesout", topic="orders") == bytes_in
    assert value(found, "kafka_server_brokertopicmetrics_failedproducerequests", topic="orders") == 0
    sizes = [value(found, "kafka_log_log_size", topic="orders", partition=number) for number in (0, 1)]
    assert sum(sizes) == bytes_in
    assert value(found, "kafka_log_log_logendoffset", topic="orders", partition=1) == 25
    assert value(found, "kafka_network_requestmetrics_requests", request="Produce") > 0
    assert value(found, "kafkalite_request_seconds", api="Produce", phase="total") > 0
    assert value(found, "kafka_coordinator_group_groupmetadatamanager_numgroupsstable") == 1
    assert value(found, "kafka_server_socket_server_metrics_connection_count", listener="PLAINTEXT") > 0


def test_refused_requests_are_counted(broker: BrokerProcess) -> None:
    before = value(scraped(broker), "kafka_server_brokertopicmetrics_failedproducerequests")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("small", 1, configs={"max.message.bytes": "100"})
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        delivery = producer.send("small", b"x" * 1000)
        with pytest.raises(MessageTooLarge):
            delivery.result(PATIENCE_S)
    found = scraped_anew(broker)
    assert value(found, "kafka_server_brokertopicmetrics_failedproducerequests") > before
    assert value(found, "kafka_server_brokertopicmetrics_failedproducerequests", topic="small") >= 1


def test_fetches_are_counted_by_topic(broker: BrokerProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("one", 1)
        admin.create_topic("two", 2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for topic in ("one", "two"):
            producer.send(topic, b"x" * len(topic) * 100, partition=0).result(PATIENCE_S)
    there, beyond = (packed.FetchPartition(0, 0, 1 << 20), packed.FetchPartition(0, 99, 1 << 20))
    with RawClient(broker.bootstrap) as client:
        for topics in (
            [("one", [there])],
            [("one", [beyond])],
            [("one", [there]), ("two", [there, beyond._replace(partition=1)])],
        ):
            request = packed.FetchRequest(topics, max_wait_ms=0, min_bytes=1)
            client.send_frame(packed.pack_fetch_request(1, "raw", 11, request))
            client.receive_frame()
    found = scraped_anew(broker)
    for topic, answers, read in (("one", 3, 2), ("two", 2, 1)):
        size = value(found, "kafka_log_log_size", topic=topic, partition=0)
        assert value(found, "kafka_server_brokertopicmetrics_totalfetchrequests", topic=topic) == answers
        assert value(found, "kafka_server_brokertopicmetrics_failedfetchrequests", topic=topic) == 1
        assert value(found, "kafka_server_brokertopicmetrics_bytesout", topic=topic) == read * size > 0


def test_a_deleted_topic_has_no_series(broker: BrokerProcess) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("passing", b"x").result(PATIENCE_S)
    before = value(scraped_anew(broker), "kafka_server_brokertopicmetrics_messagesin")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics(["passing"])

    def is_gone() -> bool:
        text = asked(f"{broker.metrics_url}/metrics")[1]
        return b'topic="passing"' not in text

    wait_until(is_gone, "the end of its series")
    assert value(scraped(broker), "kafka_server_brokertopicmetrics_messagesin") >= before


def test_probes_and_status(broker: BrokerProcess) -> None:
    url = broker.metrics_url
    assert asked(f"{url}/livez") == (200, b'{"live": true}\n')
    assert asked(f"{url}/readyz") == (200, b'{"ready": true, "reasons": []}\n')
    status: dict[str, Any] = json.loads(asked(f"{url}/status")[1])
    assert status["brokerId"] == status["controllerId"] == 1 and status["brokerStateName"] == "RUNNING"
    assert asked(f"{url}/elsewhere")[0] == 404
    # A page in a browser that asks under a name of its own.
    assert asked(f"{url}/metrics", Host="attacker.example")[0] == 421


def test_many_scrapers_and_some_that_never_read(broker: BrokerProcess) -> None:
    host, port = broker.metrics_url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(10)]
    for each in idle:
        each.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: asked(f"{broker.metrics_url}/metrics")[0], range(100)))
    assert answers == [200] * 100
    for each in idle:
        each.close()


def test_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with BrokerProcess(tmp_path / "broker", overrides={**METRICS, "metrics.token.file": token}) as broker:
        url = broker.metrics_url
        for path in ("/metrics", "/status"):
            assert asked(f"{url}{path}")[0] == 401
            assert asked(f"{url}{path}", Authorization=f"Bearer {TOKEN}x")[0] == 401
            assert asked(f"{url}{path}", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert asked(f"{url}/readyz")[0] == 200
        token.write_text(TOKEN[::-1])
        assert asked(f"{url}/metrics", Authorization=f"Bearer {TOKEN}")[0] == 401
        assert asked(f"{url}/metrics", Authorization=f"Bearer {TOKEN[::-1]}")[0] == 200
        token.unlink()
        status, body = asked(f"{url}/metrics", Authorization=f"Bearer {TOKEN[::-1]}")
        assert status == 503 and b"the file of metrics.token.file cannot be read" in body and b"/token" not in body
        assert TOKEN not in broker.stderr_path.read_text()


def test_without_the_setting_nothing_listens(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert "metrics" not in broker.tail()


def test_a_port_that_is_taken_stops_the_start_with_one_line(broker: BrokerProcess, tmp_path: Path) -> None:
    address = broker.metrics_url.removeprefix("http://")
    with pytest.raises(ChildFailed) as failed:
        BrokerProcess(tmp_path, overrides={"metrics.listener": address}).start()
    assert str(failed.value).endswith(f"metrics.listener={address}: cannot listen: Address already in use")
    assert "Traceback" not in str(failed.value)


def test_a_broker_that_fails_is_seen(tmp_path: Path) -> None:
    with KafkaliteCluster(tmp_path, overrides=METRICS) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topic("replicated", 3, replication_factor=3)
        first = cluster.brokers[1]
        wait_until(lambda: total(cluster, "kafka_server_replicamanager_leadercount") >= 3, "leaders")
        assert total(cluster, "kafka_controller_kafkacontroller_activecontrollercount") == 1
        wait_until(
            lambda: total(cluster, "kafka_server_replicamanager_underreplicatedpartitions") == 0, "full in-sync sets"
        )
        cluster.kill(3)
        wait_until(
            lambda: (
                value(scraped(first), "kafka_server_replicamanager_underreplicatedpartitions") >= 1
                and value(scraped(first), "kafka_server_replicamanager_isrshrinks") >= 1
            ),
            "the missing replica",
        )
        assert value(scraped(first), "kafkalite_registry_connected") == 1


def total(cluster: KafkaliteCluster, name: str) -> float:
    return sum(value(scraped(broker), name) for broker in cluster.brokers.values())

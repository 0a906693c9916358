"""``metrics()`` of producers and consumers, against what they have done."""

from __future__ import annotations

import re
from typing import Final

import pytest

from spark_kafkalite import Consumer, Producer
from spark_kafkalite.errors import MessageTooLarge
from tests.interop.support.collect import collected
from tests.interop.support.java_tools import JavaTools
from tests.patience import PATIENCE_S, wait_until

TOOLS: Final = "org.apache.kafka.tools."
# Java's consumer has these while a partition is assigned (class FetchMetricsRegistry).
OF_PARTITIONS: Final = {("consumer-fetch-manager-metrics", name) for name in ("records-lag", "records-lead")}


def test_a_producer_counts_what_it_sends(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        for number in range(40):
            producer.send(topic, b"x" * 100, partition=number % 2).result(PATIENCE_S)
        found = producer.metrics()
    whole, of_topic = found["producer-metrics"], found[f"producer-topic-metrics.{topic}"]
    # A partition that was just made may refuse its first record.
    sent = 40 + whole["record-retry-total"]
    assert whole["record-send-total"] == of_topic["record-send-total"] == sent
    assert whole["request-total"] == whole["response-total"] == sent
    assert sent * 100 < of_topic["byte-total"] < whole["outgoing-byte-total"]
    assert whole["record-error-total"] == 0 and of_topic["record-retry-total"] == sent - 40
    assert 0 < whole["record-send-rate"] <= sent / 30
    assert whole["records-per-request-avg"] == 1
    assert 0 < whole["request-latency-avg"] <= whole["request-latency-max"] < 1000 * PATIENCE_S
    assert 0 <= whole["record-queue-time-avg"] <= whole["record-queue-time-max"]
    assert whole["batch-size-avg"] == pytest.approx(of_topic["byte-total"] / sent)
    assert whole["buffer-available-bytes"] == whole["buffer-total-bytes"]
    assert whole["requests-in-flight"] == 0 and whole["connection-count"] == 1
    (of_node,) = [group for name, group in found.items() if name.startswith("producer-node-metrics.node-")]
    assert of_node["request-total"] == sent and of_node["incoming-byte-total"] == whole["incoming-byte-total"]


def test_records_that_fail_are_counted(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, max_request_size=20_000_000) as producer:
        delivery = producer.send(topic, b"x" * 5_000_000)
        with pytest.raises(MessageTooLarge):
            delivery.result(PATIENCE_S)
        found = producer.metrics()
    assert found["producer-metrics"]["record-error-total"] == 1
    assert found[f"producer-topic-metrics.{topic}"]["record-error-total"] == 1


def test_a_consumer_counts_what_it_reads(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(40):
            producer.send(topic, b"x" * 100, partition=number % 2)
    with Consumer(bootstrap_servers=bootstrap, group_id=f"of-{topic}", auto_offset_reset="earliest") as consumer:
        assert consumer.metrics()["consumer-coordinator-metrics"]["assigned-partitions"] == 0
        consumer.subscribe([topic])
        assert len(collected(lambda: consumer.poll(timeout_ms=200), 40)) == 40
        consumer.commit()
        consumer.poll()
        found = wait_until(
            lambda: len(metrics := consumer.metrics()) >= 4 + 4 and metrics, "a fetch of every partition"
        )
    whole, of_topic = found["consumer-fetch-manager-metrics"], found[f"consumer-fetch-manager-metrics.{topic}"]
    assert whole["records-consumed-total"] == of_topic["records-consumed-total"] == 40
    assert 40 * 100 < of_topic["bytes-consumed-total"] == whole["bytes-consumed-total"]
    assert whole["fetch-total"] >= 1 and whole["fetch-latency-max"] >= whole["fetch-latency-avg"] > 0
    assert whole["records-lag-max"] == 0
    assert found[f"consumer-fetch-manager-metrics.{topic}-0"] == {"records-lag": 0, "records-lead": 20}
    group = found["consumer-coordinator-metrics"]
    assert group["assigned-partitions"] == 4 and group["rebalance-total"] == 1 and group["commit-total"] >= 1
    assert found["consumer-metrics"]["last-poll-seconds-ago"] < PATIENCE_S
    assert group["rebalance-rate-per-hour"] > group["rebalance-total"]


@pytest.mark.kafka
def test_all_names_are_those_of_kafkas_clients(bootstrap: str, topic: str, java_tools: JavaTools) -> None:
    at = ("--bootstrap-server", bootstrap, "--topic", topic, "--print-metrics", "--num-records", "40")
    printed = [
        java_tools.run(f"{TOOLS}ProducerPerformance", *at, "--record-size", "9", "--throughput", "-1"),
        java_tools.run(f"{TOOLS}ConsumerPerformance", *at, "--group", f"java-{topic}"),
    ]
    lines = "\n".join(done.stdout for done in printed)
    kafkas = set(re.findall(r"(?m)^([\w-]+-metrics):([\w-]+):\{", lines)) | OF_PARTITIONS
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(bootstrap_servers=bootstrap, group_id=f"of-{topic}", auto_offset_reset="earliest") as consumer,
    ):
        producer.send(topic, b"x").result(PATIENCE_S)
        consumer.subscribe([topic])
        collected(lambda: consumer.poll(timeout_ms=200), 41)
        consumer.commit()
        ours = {
            (group.partition(".")[0], name)
            for metrics in (producer.metrics(), consumer.metrics())
            for group, names in metrics.items()
            for name in names
        }
    assert len(ours) > 40 and ours <= kafkas, ours - kafkas

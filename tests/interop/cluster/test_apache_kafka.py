"""Our clients on three nodes of Apache Kafka, of which the leaders are killed and stopped.

For the soak: ``test_failover`` and ``test_groups`` move leaders and coordinators under the same clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, TopicPartition
from tests.conftest import fetch_or_skip
from tests.interop.cluster.streams import Ours
from tests.lab import apache_kafka as apache_kafka_part
from tests.lab import jars
from tests.lab.apache_kafka import ApacheKafka
from tests.lab.apache_kafka_cluster import ApacheKafkaCluster
from tests.patience import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), pytest.mark.soak]

SETTINGS = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ApacheKafkaCluster]:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    with ApacheKafkaCluster(tmp_path / "kafka", overrides=SETTINGS) as cluster:
        yield cluster
        cluster.close()


def test_clients_go_on_while_leaders_are_killed_and_stopped(nodes: ApacheKafkaCluster, tmp_path: Path) -> None:
    topic, group = "numbers", "readers"
    partition = TopicPartition(topic, 0)
    read: list[int] = []
    shared: list[int] = []
    with Admin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topic(topic, 1)

        stream = Ours(nodes.bootstrap, topic, tmp_path)
        with (
            Consumer(bootstrap_servers=nodes.bootstrap) as reader,
            Consumer(
                bootstrap_servers=nodes.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as member,
        ):
            reader.assign([partition])
            reader.seek_to_beginning()
            member.subscribe([topic])

            def follow_until(holds: Callable[[], bool], what: str) -> None:
                def read_on() -> bool:
                    read.extend(int(record.value or b"-1") for record in reader.poll(50))
                    if records := member.poll(50):
                        shared.extend(int(record.value or b"-1") for record in records)
                        member.commit()
                    return holds()

                wait_until(read_on, lambda: f"{what}: {stream}, {len(read)} and {len(shared)} read")

            def follow(more: int) -> None:
                # Acknowledged since now, and read.
                wanted = stream.acknowledged + more
                follow_until(lambda: min(stream.acknowledged, len(read), len(shared)) >= wanted, f"{wanted}")

            follow(100)
            ends: tuple[Callable[[ApacheKafka], None], ...] = (ApacheKafka.kill, ApacheKafka.stop)
            for number, end in enumerate(ends):
                former = nodes.wait_for_leader(topic)
                end(nodes.nodes[former])
                follow(100)
                nodes.wait_for_leader(topic, other_than=former)
                admin.create_topic(f"made-{number}", 1)
                nodes.nodes[former].start()
                follow_until(lambda: nodes.in_sync(topic) == {1, 2, 3}, "all in sync")
            stream.stop()
            assert stream.errors == []
            follow_until(lambda: min(len(read), len(shared)) >= stream.sent, "the end")
            assert admin.group_offsets(group)[partition].offset == stream.sent
    assert read == shared == list(range(stream.sent))

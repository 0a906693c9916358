"""Leaders that move under load: which errors each project's producer gets, and what the logs have afterwards.

Two kills and two orderly stops, with all clients at work at once. tests/chaos looks closer, with everything that can go
wrong; here is what any program may rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.conftest import fetch_or_skip
from tests.interop.cluster.streams import KINDS, Stream
from tests.lab import apache_kafka as apache_kafka_part
from tests.lab import jars
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def streams(
    request: pytest.FixtureRequest, cluster: KafkaliteCluster, new_topic: Callable[..., str], tmp_path: Path
) -> Iterator[dict[str, Stream]]:
    """A producer of each kind that can run here, each at work on a topic of its own."""
    kinds = dict(KINDS)
    if apache_kafka_part.available() is None:
        fetch_or_skip(jars.APACHE_KAFKA)
    else:
        del kinds["java"]
    chosen = getattr(request, "param", kinds)
    running = {name: kind(cluster.bootstrap, new_topic(), tmp_path) for name, kind in kinds.items() if name in chosen}
    wait_until_acknowledged(running)
    yield running
    for stream in running.values():
        stream.stop()


def wait_until_acknowledged(streams: dict[str, Stream]) -> None:
    """Wait until every producer has ten acknowledgements more than it has now."""
    wanted = {name: stream.acknowledged + 10 for name, stream in streams.items()}
    wait_until(
        lambda: all(stream.acknowledged >= wanted[name] for name, stream in streams.items()),
        lambda: f"{wanted} acknowledgements: {[str(stream) for stream in streams.values()]}",
    )


def end_leaders_of_all(cluster: KafkaliteCluster, streams: dict[str, Stream], end: str) -> None:
    """End two brokers that lead projects' topics, one after the other; all producers go on without them."""
    for number in sorted({cluster.wait_for_leader(stream.topic) for stream in streams.values()})[:2]:
        getattr(cluster, end)(number)
        for stream in streams.values():
            if end == "stop":
                # A broker that stops in order has handed over what it led; nothing waits for its session's end.
                assert cluster.leader_of(stream.topic) not in (None, number)
            cluster.wait_for_leader(stream.topic, other_than=number)
        wait_until_acknowledged(streams)
        cluster.restart(number)
        cluster.wait_in_sync(*(stream.topic for stream in streams.values()))


def values_of(bootstrap: str, topic: str) -> list[int]:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        found: list[int] = []
        while len(found) < end:
            records = consumer.poll(int(PATIENCE_S * 1000))
            assert records, f"only {len(found)} of {end} records of {topic}"
            found += [int(record.value or b"-1") for record in records]
    return found


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_every_record_is_there_once_and_in_order(
    cluster: KafkaliteCluster, streams: dict[str, Stream], end: str
) -> None:
    end_leaders_of_all(cluster, streams, end)
    for name, stream in streams.items():
        stream.stop()
        assert stream.errors == [], f"{name} got errors"
        assert stream.acknowledged == stream.sent
        assert values_of(cluster.bootstrap, stream.topic) == list(range(stream.sent)), name


@pytest.mark.parametrize("streams", [("ours",)], indirect=True, ids=["ours"])
def test_our_consumer_reads_on_while_leaders_move(
    cluster: KafkaliteCluster, streams: dict[str, Stream], admin: Admin
) -> None:
    stream = streams["ours"]
    partition = TopicPartition(stream.topic, 0)
    found: list[int] = []

    def read_until(count: int) -> None:
        def has_all() -> bool:
            found.extend(int(record.value or b"-1") for record in consumer.poll(200))
            return len(found) >= count

        wait_until(has_all, lambda: f"{count} records, of which {len(found)} are read")

    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        read_until(100)
        for end in (cluster.stop, cluster.kill):
            former = cluster.wait_for_leader(stream.topic)
            end(former)
            read_until(stream.acknowledged + 100)
            cluster.restart(former)
            cluster.wait_in_sync(stream.topic)
            admin.elect_leaders([partition])
            read_until(stream.acknowledged + 100)
        stream.stop()
        read_until(stream.sent)
    assert found == list(range(stream.sent))

"""Leaders that move under load: what each project's producer is told of, and what the logs have afterwards.

Two kills and two orderly stops, with all clients at work at once. tests/chaos looks closer, with everything that can go
wrong; here is what any program may rely on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.testing import apache_kafka as apache_kafka_part
from spark_kafkalite.testing import jars
from spark_kafkalite.testing.kafkalite_cluster import SESSION_TIMEOUT_MS, KafkaliteCluster
from tests.conftest import fetch_or_skip
from tests.interop.cluster.streams import KINDS, Stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

# A death is noticed at the session's end; the rest is election, and our producer that hears of it (its back-off is up
# to a second).
KILL_GAP_S = SESSION_TIMEOUT_MS / 1000 + 3.0
STOP_GAP_S = 2.0
# The others look for a leader when they connect to the dead broker again in vain, each time after twice as long a
# back-off, give or take a fifth: the look that finds one may come after 2.5 times what the cluster has taken. Theirs
# are the moments 1.6, 3.2 and 6.4 s, where our cluster's is 3.6 s.
OTHERS_SHARE = 2.5


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
    running = {name: kind(cluster.bootstrap, new_topic(), tmp_path) for name, kind in kinds.items()}
    wait_until_acknowledged(running, time.monotonic())
    yield running
    for stream in running.values():
        stream.stop()


def wait_until_acknowledged(streams: dict[str, Stream], since_s: float) -> None:
    """Wait until every producer has ten records more than it had at a moment."""
    deadline = time.monotonic() + 40
    while any(sum(each > since_s for each in stream.acknowledged[-20:]) < 10 for stream in streams.values()):
        assert time.monotonic() < deadline, [str(stream) for stream in streams.values()]
        time.sleep(0.02)


def end_leaders_of_all(
    cluster: KafkaliteCluster, streams: dict[str, Stream], end: Callable[[int], object]
) -> dict[str, float]:
    """End the broker that leads each project's topic, one after the other; return each one's longest gap."""
    gaps = dict.fromkeys(streams, 0.0)
    for number in sorted({cluster.leader_of(stream.topic) or 0 for stream in streams.values()})[:2]:
        began_s = time.monotonic()
        end(number)
        for stream in streams.values():
            cluster.wait_for_leader(stream.topic, other_than=number)
        wait_until_acknowledged(streams, time.monotonic())
        for name, stream in streams.items():
            gaps[name] = max(gaps[name], stream.longest_gap(began_s))
        cluster.restart(number)
        cluster.wait_in_sync(*(stream.topic for stream in streams.values()))
    return gaps


def values_of(bootstrap: str, topic: str) -> list[int]:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        found: list[int] = []
        while len(found) < end:
            records = consumer.poll(10_000)
            assert records, f"only {len(found)} of {end} records of {topic}"
            found += [int(record.value or b"-1") for record in records]
    return found


@pytest.mark.parametrize(("end", "longest_s"), [("kill", KILL_GAP_S), ("stop", STOP_GAP_S)])
def test_every_record_is_there_once_and_in_order(
    cluster: KafkaliteCluster, streams: dict[str, Stream], end: str, longest_s: float
) -> None:
    gaps = end_leaders_of_all(cluster, streams, getattr(cluster, end))
    print({name: round(gap, 2) for name, gap in gaps.items()})
    for name, stream in streams.items():
        stream.stop()
        assert stream.errors == [], f"{name} was told of errors"
        assert len(stream.acknowledged) == stream.sent
        assert values_of(cluster.bootstrap, stream.topic) == list(range(stream.sent)), name
        assert gaps[name] < (longest_s if name == "ours" else OTHERS_SHARE * longest_s), name


def test_our_consumer_reads_on_while_leaders_move(
    cluster: KafkaliteCluster, streams: dict[str, Stream], admin: Admin
) -> None:
    stream = streams["ours"]
    partition = TopicPartition(stream.topic, 0)
    found: list[int] = []

    def read_until(count: int, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            found.extend(int(record.value or b"-1") for record in consumer.poll(200))

    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        read_until(100, 20)
        for end in (cluster.stop, cluster.kill):
            former = cluster.wait_for_leader(stream.topic)
            end(former)
            read_until(len(stream.acknowledged) + 100, 30)
            cluster.restart(former)
            cluster.wait_in_sync(stream.topic)
            admin.elect_leaders([partition])
            read_until(len(stream.acknowledged) + 100, 30)
        stream.stop()
        read_until(stream.sent, 30)
    assert found == list(range(stream.sent))

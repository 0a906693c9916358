"""Logs that are cut: what our consumers say of an unclean election, and who leads where a file was cut."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.client.network.served_versions import SUPPORTED
from spark_kafkalite.errors import LogTruncated
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.api_keys import ApiKey
from tests.interop.cluster.test_replication import values_of
from tests.patience import PATIENCE_S, wait_until


def produce(cluster: KafkaliteCluster, topic: str, values: range) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for delivery in [producer.send(topic, b"%d" % value) for value in values]:
            delivery.result(PATIENCE_S)


def read(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        records = consumer.poll(int(PATIENCE_S * 1000))
        assert records, f"only {len(found)} of {count} records"
        found += [int(record.value or b"-1") for record in records]
    return found


# Leaders compare by themselves from Fetch 12 on; before that they are asked.
@pytest.mark.parametrize("fetch_version", [12, 11])
def test_an_unclean_election_is_noticed_by_who_has_read_on(
    cluster: KafkaliteCluster,
    new_topic: Callable[..., str],
    admin: Admin,
    fetch_version: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SUPPORTED, ApiKey.FETCH, (4, fetch_version))
    topic = new_topic(min_insync_replicas=1)
    partition = TopicPartition(topic, 0)
    produce(cluster, topic, range(100))
    leader = cluster.wait_for_leader(topic)
    others = [number for number in cluster.brokers if number != leader]
    strict = Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none")
    going_on = Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="latest")
    with strict, going_on:
        for consumer in (strict, going_on):
            consumer.assign([partition])
            consumer.seek_to_beginning()
            assert read(consumer, 100) == list(range(100))
        for number in others:
            cluster.stop(number)
        produce(cluster, topic, range(100, 150))
        for consumer in (strict, going_on):
            assert read(consumer, 50) == list(range(100, 150))
        cluster.kill(leader)
        for number in others:
            cluster.restart(number)
        # Until its session has ended it counts as the leader, unless it was the controller, too.
        wait_until(lambda: cluster.leader_of(topic) is None, "the leader's session to end")
        with Admin(bootstrap_servers=cluster.bootstrap) as living:
            assert living.elect_leaders([partition], unclean=True) == {partition: None}
        produce(cluster, topic, range(1_000, 1_200))
        with pytest.raises(LogTruncated) as raised:
            read(strict, 1)
        assert (raised.value.offset, raised.value.divergent_offset) == (150, 100)
        assert read(going_on, 200) == list(range(1_000, 1_200))


@pytest.mark.parametrize("min_insync", [pytest.param(2, id="eligible"), pytest.param(1, id="former member")])
def test_who_has_all_leads_where_the_only_member_has_lost_the_end_of_its_log(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin, min_insync: int
) -> None:
    topic = new_topic(replication_factor=2, min_insync_replicas=min_insync)
    for first in range(0, 100, 10):
        produce(cluster, topic, range(first, first + 10))
    former = cluster.wait_for_leader(topic)
    (other,) = set(cluster.assignment_of(topic).partitions[0]) - {former}
    # With these fetches the follower learns that all of it is committed.
    produce(cluster, topic, range(100, 110))
    if min_insync == 1:
        # It leaves the ISR, and is not eligible, because one member is enough.
        cluster.stop(other)
        assert cluster.in_sync(topic) == {former}
    cluster.kill(former)
    if min_insync == 2:
        wait_until(lambda: cluster.in_sync(topic) == {other}, "the follower to lead alone")
    directory = cluster.broker(former).data_dir
    (segment,) = (directory / f"{topic}-0").glob("*.log")
    os.truncate(segment, segment.stat().st_size // 2)
    for checkpoint in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        # As it is where the last ones were written before these records.
        (directory / checkpoint).unlink(missing_ok=True)
    if min_insync == 2:
        cluster.kill(other)
    cluster.restart(former)
    wait_until(lambda: cluster.leader_of(topic) == former, "the shorter log to lead")
    cluster.restart(other)
    cluster.wait_in_sync(topic)
    assert values_of(cluster.bootstrap, topic, 110) == [b"%d" % each for each in range(110)]
    assert "lacks committed records: the broker resigns" in cluster.broker(former).stderr_path.read_text()
    admin.delete_topics([topic])

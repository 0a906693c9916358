"""A log-start-offset-checkpoint that was raised by hand while its broker was down: no replica deletes what it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import (
    LOG_START_OFFSET_FILE,
    OWN_LOG_START_FILE,
    read_offsets,
    write_offsets,
)
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.test_replication import values_of
from tests.patience import PATIENCE_S, wait_until

COUNT, DELETED, RAISED = 100, 25, 80


@pytest.mark.parametrize("both", [False, True])
def test_a_raised_log_start_deletes_nothing_and_deleted_records_stay_deleted(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin, both: bool
) -> None:
    topic = new_topic(segment_bytes=10_000)
    partition = TopicPartition(topic, 0)
    values = [b"%d" % n + b"x" * 900 for n in range(COUNT)]
    with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, batch_size=1000) as producer:
        for value in values:
            producer.send(topic, value).result(PATIENCE_S)
    leader = cluster.wait_for_leader(topic)
    others = [number for number in cluster.brokers if number != leader]
    for number in others:
        cluster.kill(number)
    wait_until(lambda: cluster.in_sync(topic) == {leader}, "the killed brokers to leave the ISR")
    # The other replicas have these records still when they come back.
    with Admin(bootstrap_servers=cluster.broker(leader).bootstrap) as alone:
        assert alone.delete_records({partition: DELETED}) == {partition: DELETED}
    cluster.kill(leader)
    path = str(cluster.broker(leader).data_dir / LOG_START_OFFSET_FILE)
    starts = read_offsets(OsFs(), path)
    assert starts[partition] == DELETED
    write_offsets(OsFs(), path, {**starts, partition: RAISED})
    own, start = cluster.broker(leader).data_dir / OWN_LOG_START_FILE, DELETED
    if both:
        text = own.read_text(encoding="ascii")
        assert f"{topic} 0 {DELETED}\n" in text
        own.write_text(text.replace(f"{topic} 0 {DELETED}\n", f"{topic} 0 {RAISED}\n"), encoding="ascii")
        # No file says any more where the log started in its first segment.
        start = min(int(each.stem) for each in (own.parent / f"{topic}-0").glob("*.log"))
        assert start <= DELETED
    for number in (leader, *others):
        cluster.restart(number)
    cluster.wait_in_sync(topic)
    log = cluster.broker(leader).stderr_path.read_text()
    assert log.count(f"{topic}-0: the log start offset in {LOG_START_OFFSET_FILE} is {RAISED}") == 1
    assert log.count(f"{own}: its checksum is missing or wrong") == both

    def start_of(number: int) -> int:
        return read_offsets(OsFs(), str(cluster.broker(number).data_dir / LOG_START_OFFSET_FILE)).get(partition, 0)

    # A follower is in sync before its own log starts where its leader's does.
    wait_until(
        lambda: all(start_of(number) == start for number in cluster.brokers),
        lambda: f"log starts: { ({number: start_of(number) for number in cluster.brokers}) }",
    )
    # Each broker, when it leads, shows all that was not deleted, and nothing that was.
    for _ in cluster.brokers:
        former = cluster.wait_for_leader(topic)
        found = admin.list_offsets({partition: -2})[partition]
        assert found is not None and found.offset == start
        assert values_of(cluster.bootstrap, topic, COUNT - start) == values[start:]
        cluster.stop(former)
        cluster.wait_for_leader(topic, other_than=former)
        cluster.restart(former)
        cluster.wait_in_sync(topic)

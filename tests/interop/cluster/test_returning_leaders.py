"""A leader that comes back with records that nobody else has: they go, and everything that followed from them goes too.

What only it has was acknowledged with acks=1, while the others did not hear it; its successor has other records at
these offsets.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

import pytest

from spark_kafkalite import Admin, TopicPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdRequest
from spark_kafkalite.wire.packed import ProducedPartition
from tests.interop.cluster.heard import wait_until_told_of_isr
from tests.interop.cluster.test_replication import log_bytes, values_of, wait_until_equal
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S, wait_until

# Not the leader yet, not in time, too few in sync before or after the append.
PASSING = {6, 7, 19, 20}


def produce(client: RawClient, topic: str, batch: bytearray, acks: int) -> ProducedPartition:
    """Have a leader take a batch. A new leader learns of its election, and of its followers, after the registry."""
    told: list[ProducedPartition] = []

    def is_final() -> bool:
        told.append(client.produce(topic, batch, acks=acks))
        return told[-1].error_code not in PASSING

    wait_until(is_final, lambda: f"a leader of {topic}, {told[-1]}")
    return told[-1]


class Idempotent:
    """An idempotent producer's requests for one partition, one record a batch; values are names and numbers."""

    def __init__(self, cluster: KafkaliteCluster, topic: str, name: str) -> None:
        self._cluster, self._topic, self._name = cluster, topic, name
        with RawClient(cluster.broker(1).bootstrap) as client:
            self._id = client.call(InitProducerIdRequest(transactional_id=None), 4).producer_id

    def value(self, sequence: int) -> bytes:
        return f"{self._name}-{sequence}".encode()

    def batch(self, sequence: int) -> bytearray:
        return make_batch(
            [self.value(sequence)],
            timestamp_ms=time.time_ns() // 1_000_000,
            producer_id=self._id,
            producer_epoch=0,
            base_sequence=sequence,
        )

    def send(self, leader: int, sequences: range, offset: int, acks: int = -1) -> None:
        """Send records to a broker, one after the other; each is taken, or known, at its own offset."""
        with RawClient(self._cluster.broker(leader).bootstrap) as client:
            for expected, sequence in enumerate(sequences, offset):
                told = produce(client, self._topic, self.batch(sequence), acks)
                assert (told.error_code, told.base_offset) == (0, expected), f"{self.value(sequence)!r}: {told}"


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_it_forgets_what_it_alone_had_and_its_producers_go_on(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin, end: str
) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    steady, silent = Idempotent(cluster, topic, "steady"), Idempotent(cluster, topic, "silent")
    first = cluster.wait_for_leader(topic)
    followers = [number for number in cluster.brokers if number != first]
    steady.send(first, range(10), 0)
    wait_until_equal(cluster, topic)
    for number in followers:
        cluster.pause(number)
    # Requests of the followers wait at the leader, and are answered with the first of these.
    steady.send(first, range(10, 30), 10, acks=1)
    silent.send(first, range(5), 30, acks=1)
    with RawClient(cluster.broker(first).bootstrap, PATIENCE_S) as late:
        getattr(cluster, end)(first)
        for number in followers:
            cluster.resume(number)
        if end == "pause":
            late.send_produce([(topic, [(0, steady.batch(30))])], acks=1)
        second = cluster.wait_for_leader(topic, other_than=first)
        steady.send(second, range(10, 20), 10)
        if end == "kill":
            cluster.restart(first)
        else:
            cluster.resume(first)
            assert late.receive_produce().topics[0][1][0].error_code, "taken by a leader that was deposed"
    cluster.wait_in_sync(topic)
    wait_until_equal(cluster, topic)
    # The first one leads again. It knows which sequence numbers it has, and not those that it had.
    assert admin.elect_leaders([partition]) == {partition: None}
    assert cluster.leader_of(topic) == first
    silent.send(first, range(5), 20)
    steady.send(first, range(18, 20), 18)
    steady.send(first, range(20, 25), 25)
    cluster.kill(first)
    third = cluster.wait_for_leader(topic, other_than=first)
    silent.send(third, range(5), 20)
    steady.send(third, range(22, 30), 27)
    cluster.restart(first)
    cluster.wait_in_sync(topic)
    wait_until_equal(cluster, topic)
    expected = [*map(steady.value, range(20)), *map(silent.value, range(5)), *map(steady.value, range(20, 30))]
    assert values_of(cluster.bootstrap, topic, 35) == expected


def test_an_answer_from_what_is_cut_off_is_not_sent_to_its_end(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    """Only an unclean election cuts what consumers may be sent: the file's bytes are others in the middle of it."""
    topic = new_topic(min_insync_replicas=1)
    leader = cluster.wait_for_leader(topic)
    followers = [number for number in cluster.brokers if number != leader]
    for number in followers:
        cluster.stop(number)
    with RawClient(cluster.broker(leader).bootstrap, PATIENCE_S) as client:
        for number in range(20):
            told = produce(client, topic, make_batch([b"old" + bytes([number]) * 1_000_000]), 1)
            assert told.error_code == 0
    old = log_bytes(cluster, leader, topic)
    with RawClient(cluster.broker(leader).bootstrap, PATIENCE_S) as reader:
        reader.send_fetch(topic, 0, partition_max_bytes=1 << 26, max_bytes=1 << 26)
        size_bytes = int.from_bytes(reader.socket.recv(4, socket.MSG_WAITALL), "big")
        assert size_bytes > len(old)
        cluster.pause(leader)
        for number in followers:
            cluster.restart(number)
        wait_until(lambda: cluster.leader_of(topic) is None, "the leader's session to end")
        with Admin(bootstrap_servers=cluster.broker(followers[0]).bootstrap) as living:
            living.elect_leaders([TopicPartition(topic, 0)], unclean=True)
        successor = cluster.wait_for_leader(topic, other_than=leader)
        with RawClient(cluster.broker(successor).bootstrap, PATIENCE_S) as client:
            for number in range(20):
                told = produce(client, topic, make_batch([b"new" + bytes([number + 100]) * 1_000_000]), 1)
                assert told.error_code == 0
        cluster.resume(leader)
        cluster.wait_in_sync(topic)
        new = wait_until_equal(cluster, topic)
        assert b"new" in new and b"old" not in new
        received = bytearray()
        try:
            while piece := reader.socket.recv(1 << 16):
                received += piece
        except ConnectionError:
            pass
    assert len(received) < size_bytes, "the answer went on after its records were gone"
    records = received[received.index(old[:61]) :]
    assert old.startswith(records), "records of two logs in one answer"


def test_what_was_sent_behind_a_refused_batch_is_refused_like_it(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin
) -> None:
    """Refused for its gap alone, librdkafka would take a new producer epoch and write unanswered records again."""
    topic = new_topic(min_insync_replicas=3)
    leader = cluster.leader_of(topic)
    assert leader is not None
    producer = Idempotent(cluster, topic, "p")
    with contextlib.ExitStack() as undo, RawClient(cluster.broker(leader).bootstrap) as client:
        undo.callback(admin.delete_topics, [topic])
        assert produce(client, topic, producer.batch(0), acks=-1).error_code == 0
        away = next(number for number in cluster.brokers if number != leader)
        cluster.stop(away)
        # Before that the leader would append the next one, and wait for three.
        wait_until_told_of_isr(cluster.broker(leader).bootstrap, topic, set(cluster.brokers) - {away})
        # Replicas are too few for the next one, and not for the one behind it, which was on its way by then.
        assert client.produce(topic, producer.batch(1)).error_code == 19
        client.send_produce([(topic, [(0, producer.batch(1))])])
        client.send_produce([(topic, [(0, producer.batch(3))])], acks=1)
        told = [client.receive_produce().topics[0][1][0] for _ in range(2)]
        assert [outcome.error_code for outcome in told] == [19, 19]
        assert "may have been refused" in (told[1].error_message or "")
        # Sent again in their order they are taken; and a gap that stays is told of.
        assert client.produce(topic, producer.batch(1), acks=1).error_code == 0
        wait_until(lambda: client.produce(topic, producer.batch(3), acks=1).error_code == 45, "the gap to be refused")

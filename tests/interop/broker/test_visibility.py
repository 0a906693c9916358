"""visibility.policy=flushed and flush.before.ack on a real broker whose fsync is held up: what APIs show meanwhile.

A flush is held until the test releases it, so that no answer depends on how fast the host is. ``bench/latency.py``
measures how soon after a flush the waiting requests are answered.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.client.admin.configs import ConfigChange
from spark_kafkalite.errors import OffsetOutOfRange
from spark_kafkalite.model import LATEST_TIMESTAMP, MAX_TIMESTAMP
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.interop.broker import held_fsync
from tests.interop.broker.held_fsync import HeldFsync
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until

# As long as a test waits for anything.
WAIT_MS = int(PATIENCE_S * 1000)
REQUEST_TIMED_OUT = 7


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", command_prefix=held_fsync.command_prefix(tmp_path)) as running:
        yield running


def create(broker: BrokerProcess, name: str, **config: object) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(name, 1, 1, {key.replace("_", "."): str(value) for key, value in config.items()})


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch(*values: bytes, timestamp_ms: int | None = None) -> bytearray:
    return make_batch(list(values), timestamp_ms=timestamp_ms if timestamp_ms is not None else now_ms())


def flush_once(client: RawClient, topic: str, partitions: int = 1) -> None:
    """Append a record to each partition and wait until it is flushed: the first flush also syncs a new log's names."""
    for number in range(partitions):
        assert client.produce(topic, batch(b"first"), number).error_code == 0
        wait_until(
            lambda number=number: client.fetch(topic, 0, partition=number, max_wait_ms=500).high_watermark == 1,
            f"the first flush of partition {number}",
        )


def has_answer(client: RawClient) -> bool:
    """Whether an answer has come that the client has not read."""
    return bool(select.select([client.socket], [], [], 0)[0])


def offset_at(client: RawClient, topic: str, timestamp: int, isolation_level: int = 0) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
    )
    answer = client.call(request, 7).topics[0].partitions[0]
    assert answer.error_code == 0
    return int(answer.offset)


def epoch_end(client: RawClient, topic: str) -> int:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])])
    return int(client.call(request, 4).topics[0].partitions[0].end_offset)


def spark_rows(broker: BrokerProcess, topic: str) -> list[bytes]:
    """What a batch read would give, as the driver plans it and a worker reads it; without a Spark session."""
    from spark_kafkalite.spark.source import KafkaliteDataSource

    source = KafkaliteDataSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic})
    reader = source.reader(source.schema())
    return [
        value
        for part in reader.partitions()
        for rows in reader.read(part)
        for value in rows.column("value").to_pylist()
    ]


def test_no_api_shows_what_is_not_flushed(broker: BrokerProcess, tmp_path: Path) -> None:
    create(broker, "t", visibility_policy="flushed", flush_messages=2)
    partition = TopicPartition("t", 0)
    old = now_ms() - 50_000
    with (
        RawClient(broker.bootstrap, PATIENCE_S) as client,
        RawClient(broker.bootstrap, PATIENCE_S) as waiting,
        Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        assert client.produce("t", batch(b"a", b"b", timestamp_ms=old)).error_code == 0
        assert [value for _, value in values_of(client.fetch("t", 0, max_wait_ms=WAIT_MS).records)] == [b"a", b"b"]
        consumer.assign([partition])
        assert [record.value for record in consumer.poll(WAIT_MS)] == [b"a", b"b"]
        assert spark_rows(broker, "t") == [b"a", b"b"]  # its imports take long the first time
        with HeldFsync(tmp_path) as held:
            waiting.send_fetch("t", 2, max_wait_ms=WAIT_MS)
            # Acknowledged, as nothing asks the acknowledgement to wait for the flush that it begins.
            assert client.produce("t", batch(b"c", b"d"), acks=-1).base_offset == 2
            held.wait_for_calls()
            for isolation_level in (0, 1):
                for offset in (0, 2, 3, 4):
                    hidden = client.fetch("t", offset, max_wait_ms=0, isolation_level=isolation_level)
                    assert (hidden.error_code, hidden.high_watermark, hidden.last_stable_offset) == (0, 2, 2)
                    assert [value for _, value in values_of(hidden.records)] == ([b"a", b"b"] if offset == 0 else [])
                assert offset_at(client, "t", LATEST_TIMESTAMP, isolation_level) == 2
                assert offset_at(client, "t", old + 1, isolation_level) == -1
                assert offset_at(client, "t", MAX_TIMESTAMP, isolation_level) in (0, 1)
            # Kafka's truncation check needs the log's own end: see the handler.
            assert epoch_end(client, "t") == 4
            assert consumer.end_offsets([partition]) == {partition: 2}
            assert consumer.offsets_for_times({partition: old + 1}) == {partition: None}
            assert consumer.poll(0) == []
            assert consumer.high_watermark(partition) == 2
            assert spark_rows(broker, "t") == [b"a", b"b"]
            assert not has_answer(waiting)
            held.release()
            shown = waiting.receive_fetch().topics[0][1][0]
        assert [value for _, value in values_of(shown.records)] == [b"c", b"d"]
        assert (shown.high_watermark, shown.last_stable_offset) == (4, 4)
        assert (offset_at(client, "t", LATEST_TIMESTAMP), offset_at(client, "t", old + 1)) == (4, 2)
        assert [record.value for record in consumer.poll(WAIT_MS)] == [b"c", b"d"]
        assert spark_rows(broker, "t") == [b"a", b"b", b"c", b"d"]


def test_flush_ms_bounds_how_long_records_stay_hidden(broker: BrokerProcess, tmp_path: Path) -> None:
    create(broker, "t", visibility_policy="flushed", flush_ms=200)
    with RawClient(broker.bootstrap, PATIENCE_S) as client, RawClient(broker.bootstrap, PATIENCE_S) as waiting:
        flush_once(client, "t")
        with HeldFsync(tmp_path) as held:
            waiting.send_fetch("t", 1, max_wait_ms=WAIT_MS)
            began_s = time.monotonic()
            client.produce("t", batch(b"a"), acks=1)
            # No other record asks for it, so the time alone begins the flush.
            held.wait_for_calls()
            assert time.monotonic() - began_s >= 0.19
            assert offset_at(client, "t", LATEST_TIMESTAMP) == 1
            assert not has_answer(waiting)
            held.release()
            assert len(values_of(waiting.receive_fetch().topics[0][1][0].records)) == 1


def test_after_kill_9_what_is_shown_is_on_the_disk(broker: BrokerProcess, tmp_path: Path) -> None:
    create(broker, "t", visibility_policy="flushed", flush_messages=1_000_000)
    with RawClient(broker.bootstrap) as client:
        assert client.produce("t", batch(b"a", b"b", b"c")).error_code == 0
        assert offset_at(client, "t", LATEST_TIMESTAMP) == 0
    broker.kill()
    broker.start()
    # Recovery has synced what it found, before it was shown: the checkpoint that a power loss leaves says so.
    points = (broker.data_dir / "recovery-point-offset-checkpoint").read_text().splitlines()
    assert "t 0 3" in points
    with RawClient(broker.bootstrap) as client:
        assert offset_at(client, "t", LATEST_TIMESTAMP) == 3
        # The first append after a crash syncs the log's identity, and the file's records no more than that.
        assert client.produce("t", batch(b"d")).base_offset == 3
        with HeldFsync(tmp_path):
            assert client.produce("t", batch(b"e")).base_offset == 4
            assert client.fetch("t", 3, max_wait_ms=300).high_watermark == 3


class TestFlushBeforeAck:
    def test_every_acknowledgement_waits_for_the_flush(self, broker: BrokerProcess, tmp_path: Path) -> None:
        create(broker, "t", flush_before_ack="true")
        with RawClient(broker.bootstrap, PATIENCE_S) as client, RawClient(broker.bootstrap, PATIENCE_S) as other:
            flush_once(client, "t")
            pair = make_batch([b"a"], timestamp_ms=now_ms(), producer_id=5, producer_epoch=0, base_sequence=0)
            with HeldFsync(tmp_path) as held:
                client.send_produce([("t", [(0, pair)])], acks=1, timeout_ms=WAIT_MS)
                # Committed, so it is shown; visibility.policy is another matter.
                assert other.fetch("t", 1, max_wait_ms=WAIT_MS).high_watermark == 2
                # The same batch again is no new append, and it is not on the disk either.
                duplicate = other.produce("t", pair, acks=-1, timeout_ms=300)
                assert duplicate.error_code == REQUEST_TIMED_OUT
                assert not has_answer(client)
                held.release()
                acknowledged = client.receive_produce().topics[0][1][0]
                assert (acknowledged.error_code, acknowledged.base_offset) == (0, 1)
            assert other.produce("t", pair, acks=-1).base_offset == 1

    def test_waiting_produces_share_flushes(self, broker: BrokerProcess, tmp_path: Path) -> None:
        create(broker, "t", flush_before_ack="true")
        producers = 24
        clients = [RawClient(broker.bootstrap, PATIENCE_S) for _ in range(producers)]
        flush_once(clients[0], "t")
        with HeldFsync(tmp_path) as held, RawClient(broker.bootstrap, PATIENCE_S) as looking:
            first, *others = clients
            first.send_produce([("t", [(0, batch(b"x"))])], acks=-1, timeout_ms=WAIT_MS)
            held.wait_for_calls()
            for client in others:
                client.send_produce([("t", [(0, batch(b"x"))])], acks=-1, timeout_ms=WAIT_MS)
            wait_until(
                lambda: looking.fetch("t", producers, max_wait_ms=500).high_watermark == 1 + producers,
                "all records appended",
            )
            assert held.calls() == 1
            held.release()
            offsets = [client.receive_produce().topics[0][1][0].base_offset for client in clients]
            # The first is flushed alone. Those that came during that flush share the next one.
            assert held.calls() == 2
        assert sorted(offsets) == list(range(1, producers + 1))
        for client in clients:
            client.close()

    def test_partitions_are_flushed_at_the_same_time(self, broker: BrokerProcess, tmp_path: Path) -> None:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("t", 4, 1, {"flush.before.ack": "true"})
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            flush_once(client, "t", 4)
            with HeldFsync(tmp_path) as held:
                client.send_produce([("t", [(number, batch(b"x")) for number in range(4)])], timeout_ms=WAIT_MS)
                # Not one after another: none of them can end.
                held.wait_for_calls(4)
                assert not has_answer(client)
                held.release()
                outcomes = client.receive_produce().topics[0][1]
                assert [outcome.error_code for outcome in outcomes] == [0, 0, 0, 0]
                assert held.calls() == 4

    def test_a_held_flush_holds_up_no_other_topic(self, broker: BrokerProcess, tmp_path: Path) -> None:
        create(broker, "slow", flush_before_ack="true")
        create(broker, "fast")
        with RawClient(broker.bootstrap, PATIENCE_S) as client, RawClient(broker.bootstrap, PATIENCE_S) as other:
            for topic in ("slow", "fast"):
                assert client.produce(topic, batch(b"first")).error_code == 0
            with HeldFsync(tmp_path) as held:
                client.send_produce([("slow", [(0, batch(b"x"))])], timeout_ms=WAIT_MS)
                held.wait_for_calls()
                for number in range(100):
                    assert other.produce("fast", batch(b"y")).base_offset == number + 1
                assert not has_answer(client)
                held.release()
                assert client.receive_produce().topics[0][1][0].error_code == 0


def test_settings_that_change_hold_at_once(broker: BrokerProcess) -> None:
    create(broker, "t", visibility_policy="flushed", flush_messages=1_000_000)
    partition = TopicPartition("t", 0)
    with (
        Admin(bootstrap_servers=broker.bootstrap) as admin,
        RawClient(broker.bootstrap, PATIENCE_S) as client,
        RawClient(broker.bootstrap, PATIENCE_S) as waiting,
    ):

        def alter(name: str, value: str) -> None:
            admin.incremental_alter_configs([ConfigChange(name, "set", value)], topic="t")

        def produce_hidden(value: bytes, offset: int) -> None:
            assert client.produce("t", batch(value)).base_offset == offset
            assert offset_at(client, "t", LATEST_TIMESTAMP) == offset
            waiting.send_fetch("t", offset, max_wait_ms=WAIT_MS)

        def shown() -> list[bytes | None]:
            return [value for _, value in values_of(waiting.receive_fetch().topics[0][1][0].records)]

        produce_hidden(b"a", 0)
        alter("visibility.policy", "committed")
        assert shown() == [b"a"]
        alter("visibility.policy", "flushed")
        assert offset_at(client, "t", LATEST_TIMESTAMP) == 1  # What was shown stays shown.
        produce_hidden(b"b", 1)
        alter("flush.messages", "1")
        assert shown() == [b"b"]
        assert client.produce("t", batch(b"c")).base_offset == 2
        assert offset_at(client, "t", LATEST_TIMESTAMP) == 3  # An acknowledgement comes after the flush now.
        alter("flush.messages", "1000000")
        produce_hidden(b"d", 3)
        assert admin.delete_records({partition: -1}) == {partition: 3}
        with pytest.raises(OffsetOutOfRange):
            admin.delete_records({partition: 4})
        alter("flush.ms", "100")
        assert shown() == [b"d"]

"""What survives kill -9 and an orderly stop; visibility and acknowledgement by flush; what refuses to start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def create(broker: BrokerProcess, name: str, partitions: int = 1, **config: str) -> None:
    settings = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
    with RawClient(broker.bootstrap) as client:
        assert client.call(CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 7).topics[0].error_code == 0


def batch(*values: bytes) -> bytearray:
    return make_batch(list(values), timestamp_ms=time.time_ns() // 1_000_000)


def read_all(broker: BrokerProcess, topic: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    with RawClient(broker.bootstrap) as client:
        while True:
            offset = found[-1][0] + 1 if found else 0
            answer = client.fetch(topic, offset, partition=partition, max_wait_ms=0)
            assert answer.error_code == 0
            records = [pair for pair in values_of(answer.records) if pair[0] >= offset]
            if not records:
                return found
            found += records


def leader_epoch(broker: BrokerProcess, topic: str) -> int:
    with RawClient(broker.bootstrap) as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        partition = client.call(request, 12).topics[0].partitions[0]
        assert partition.error_code == 0
        return int(partition.leader_epoch)


@pytest.mark.parametrize("acks", [1, -1])
def test_what_was_acknowledged_survives_kill_9(broker: BrokerProcess, acks: int) -> None:
    create(broker, "t", segment_bytes="5000")
    acknowledged: list[tuple[int, bytes]] = []
    for round_number in range(4):
        with RawClient(broker.bootstrap) as client:
            for number in range(100):
                value = b"%d-%d" % (round_number, number) * 10
                outcome = client.produce("t", batch(value), acks=acks)
                assert outcome.error_code == 0
                acknowledged.append((outcome.base_offset, value))
            # In flight when the broker dies: may or may not be there afterwards.
            client.send_produce([("t", [(0, batch(b"in flight"))])], acks=acks)
            broker.kill()
        broker.start()
    # Its logs are known to be whole, so it has led in the same epoch all the time.
    assert leader_epoch(broker, "t") == 0
    found = dict(read_all(broker, "t"))
    assert [found.get(offset) for offset, _ in acknowledged] == [value for _, value in acknowledged]
    assert list(found) == list(range(len(found)))


def test_an_orderly_stop_leaves_the_marker_and_exit_code_0(broker: BrokerProcess) -> None:
    create(broker, "t", 3)
    with RawClient(broker.bootstrap) as client:
        for partition in range(3):
            client.produce("t", batch(b"%d" % partition), partition)
        client.send_fetch("t", 1, max_wait_ms=600_000)  # a long poll must not hold the stop up
        assert broker.stop(PATIENCE_S) == 0
    assert (broker.data_dir / ".kafka_cleanshutdown").exists()
    broker.start()
    assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
    assert [read_all(broker, "t", partition) for partition in range(3)] == [[(0, b"0")], [(0, b"1")], [(0, b"2")]]
    assert "not clean" not in broker.stderr_path.read_text()
    assert leader_epoch(broker, "t") == 0


def test_logs_that_nobody_knows_to_be_whole_are_led_in_another_epoch(broker: BrokerProcess) -> None:
    """As after a power loss. The only replica there is goes on all the same."""
    create(broker, "t")
    with RawClient(broker.bootstrap) as client:
        client.produce("t", batch(b"kept"))
    broker.kill()
    (broker.data_dir / "kafkalite-run").unlink()
    broker.start()
    assert leader_epoch(broker, "t") == 1
    assert read_all(broker, "t") == [(0, b"kept")]
    broker.restart()
    assert leader_epoch(broker, "t") == 1


def test_a_second_broker_on_the_data_or_the_port_refuses_to_start(broker: BrokerProcess, tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="in use"):
        BrokerProcess(broker.data_dir).start()
    with pytest.raises(ChildFailed, match=r"cannot listen on .*is another broker running"):
        BrokerProcess(tmp_path / "other", port=broker.port).start()


def test_data_of_another_broker_is_refused(broker: BrokerProcess) -> None:
    broker.stop()
    with pytest.raises(ChildFailed, match=r"belongs to broker 1, this is broker 2"):
        BrokerProcess(broker.data_dir, overrides={"broker.id": 2}).start()


def test_unknown_settings_are_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        ChildFailed, match=r"unknown broker setting 'log.retention.hour'; did you mean 'log.retention.hour"
    ):
        BrokerProcess(tmp_path / "data", overrides={"log.retention.hour": 1}).start()


class TestFlush:
    def latest(self, client: RawClient, topic: str) -> int:
        asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
        return int(client.call(request, 7).topics[0].partitions[0].offset)

    def test_flushed_visibility_by_count(self, broker: BrokerProcess) -> None:
        create(broker, "t", visibility_policy="flushed", flush_messages="3")
        with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as waiting:
            assert client.produce("t", batch(b"a")).error_code == 0
            assert client.produce("t", batch(b"b")).error_code == 0
            hidden = client.fetch("t", 0, max_wait_ms=100)
            assert (bytes(hidden.records), hidden.high_watermark, hidden.last_stable_offset) == (b"", 0, 0)
            assert self.latest(client, "t") == 0
            waiting.send_fetch("t", 0, max_wait_ms=int(PATIENCE_S * 1000))
            assert client.produce("t", batch(b"c")).error_code == 0
            shown = waiting.receive_fetch().topics[0][1][0]
            assert [value for _, value in values_of(shown.records)] == [b"a", b"b", b"c"]
            assert (shown.high_watermark, self.latest(client, "t")) == (3, 3)

    def test_flushed_visibility_by_time(self, broker: BrokerProcess) -> None:
        create(broker, "t", visibility_policy="flushed", flush_ms="300")
        with RawClient(broker.bootstrap) as client:
            began = time.monotonic()
            assert client.produce("t", batch(b"a")).error_code == 0
            assert client.fetch("t", 0, max_wait_ms=int(PATIENCE_S * 1000)).high_watermark == 1
            assert time.monotonic() - began > 0.25

    @pytest.mark.parametrize("setting", [{"flush_before_ack": "true"}, {"flush_messages": "1"}])
    def test_acknowledged_after_the_flush_which_is_shared(self, broker: BrokerProcess, setting: dict[str, str]) -> None:
        create(broker, "t", **setting)
        with RawClient(broker.bootstrap) as client:
            for _ in range(200):
                client.send_produce([("t", [(0, batch(b"x"))])], acks=1)
            outcomes = [client.receive_produce().topics[0][1][0] for _ in range(200)]
        assert [(outcome.error_code, outcome.base_offset) for outcome in outcomes] == [(0, n) for n in range(200)]
        assert broker.stop() == 0


def test_a_broker_that_has_started_takes_little_memory(broker: BrokerProcess) -> None:
    assert broker.resident_bytes() < 60_000_000

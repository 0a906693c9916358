"""The broker at the level of frames: order of answers, long polls, limits, error codes, idempotent duplicates."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.records import kernel
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from spark_kafkalite.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.describe_cluster import DescribeClusterRequest
from spark_kafkalite.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdRequest
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafkalite.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until

# Longer than any client here waits for an answer.
LONG_MS = 600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def create(client: RawClient, name: str, partitions: int = 1, **config: str) -> None:
    settings = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
    result = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 7).topics[0]
    assert (result.error_code, result.error_message) == (0, None)


def list_offset(client: RawClient, topic: str, timestamp: int, *, isolation: int = 0, epoch: int = -1) -> tuple:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
    )
    answer = client.call(request, 7).topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", overrides={"num.partitions": 2}) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap, PATIENCE_S) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    name = f"t-{request.node.name.replace('[', '-').replace(']', '')}"[:200]
    create(client, name)
    return name


class TestApiVersions:
    def test_lists_what_is_served_and_produce_from_zero(self, client: RawClient) -> None:
        answer = client.call(ApiVersionsRequest(client_software_name="raw", client_software_version="1.0"), 3)
        served = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert served == {
            0: (0, 10), 1: (4, 17), 2: (1, 9), 3: (0, 12), 8: (2, 9), 9: (1, 9),
            10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5),
            15: (0, 5), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 4),
            23: (2, 4), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4), 33: (0, 2), 35: (1, 4), 36: (0, 2), 37: (0, 3),
            42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0),
            51: (0, 0), 60: (0, 1), 74: (0, 1), 75: (0, 0),
        }  # fmt: skip

    def test_a_newer_version_is_answered_in_version_0(self, client: RawClient) -> None:
        client.send_frame(struct.pack(">hhih", 18, 9, 77, -1) + b"\x00rest of an unknown layout")
        frame = client.receive_frame()
        assert frame == struct.pack(">ihihhh", 77, 35, 1, 18, 0, 4)
        assert client.call(ApiVersionsRequest(), 2).error_code == 0

    def test_software_name_is_checked(self, client: RawClient) -> None:
        assert (
            client.call(ApiVersionsRequest(client_software_name="-", client_software_version="1"), 3).error_code == 42
        )

    # 24 to 28 are those of transactions, 68 and 69 those of the newer consumer protocol.
    @pytest.mark.parametrize(
        ("key", "version"),
        [(0, 2), (0, 13), (1, 3), (1, 18), (8, 10), (999, 0), (-1, 0), *((key, 0) for key in (*range(24, 29), 68, 69))],
    )
    def test_an_unserved_api_or_version_closes_the_connection(
        self, broker: BrokerProcess, key: int, version: int
    ) -> None:
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            client.send_frame(struct.pack(">hhih", key, version, 1, -1) + bytes(20))
            assert client.is_closed()


class TestOrder:
    def test_a_long_poll_holds_back_later_answers_of_its_connection(self, client: RawClient, topic: str) -> None:
        # Longer than the client may take to send the next one.
        fetch_id = client.send_fetch(topic, 0, max_wait_ms=LONG_MS, min_bytes=1)
        produce_id = client.send_produce([(topic, [(0, make_batch(3, timestamp_ms=now_ms()))])])
        fetched = client.receive_fetch()
        produced = client.receive_produce()
        assert (fetched.correlation_id, produced.correlation_id) == (fetch_id, produce_id)
        # The produce was done meanwhile, and woke the fetch.
        assert [value for _, value in values_of(fetched.topics[0][1][0].records)] == [
            b"value-0",
            b"value-1",
            b"value-2",
        ]

    def test_many_pipelined_requests_are_answered_in_order(self, client: RawClient, topic: str) -> None:
        batch = make_batch(1, timestamp_ms=now_ms())
        sent = [client.send_produce([(topic, [(0, batch)])], acks=1) for _ in range(500)]
        answers = [client.receive_produce() for _ in sent]
        assert [answer.correlation_id for answer in answers] == sent
        assert [answer.topics[0][1][0].base_offset for answer in answers] == list(range(500))

    def test_large_compressed_batches_keep_their_place(self, client: RawClient, topic: str) -> None:
        values = [b"%06d" % number * 200 for number in range(2000)]
        large = make_batch(values, codec="gzip", timestamp_ms=now_ms())
        small = make_batch(1, timestamp_ms=now_ms())
        for _ in range(5):
            client.send_produce([(topic, [(0, large)])])
            client.send_produce([(topic, [(0, small)])])
        offsets = [client.receive_produce().topics[0][1][0].base_offset for _ in range(10)]
        assert offsets == [number for pair in range(5) for number in (pair * 2001, pair * 2001 + 2000)]

    def test_requests_cut_into_single_bytes(self, client: RawClient, topic: str) -> None:
        frame = struct.pack(">hhih", 18, 0, 5, -1)
        for byte in struct.pack(">i", len(frame)) + frame:
            client.socket.sendall(bytes([byte]))
        assert client.receive_frame()[:4] == struct.pack(">i", 5)


class TestProduce:
    def test_offsets_and_what_is_fetched(self, client: RawClient, topic: str) -> None:
        first = client.produce(topic, make_batch(3, timestamp_ms=now_ms()))
        second = client.produce(topic, make_batch(2, timestamp_ms=now_ms()))
        assert (first.error_code, first.base_offset, first.log_append_time_ms, first.log_start_offset) == (0, 0, -1, 0)
        assert second.base_offset == 3
        fetched = client.fetch(topic, 1)
        headers = kernel.scan_headers(fetched.records)
        assert [(header.base_offset, header.partition_leader_epoch) for header in headers] == [(0, 0), (3, 0)]
        assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (5, 5, 0)
        assert fetched.aborted_transactions is None

    @pytest.mark.parametrize("acks", [2, -2, 7])
    def test_unknown_acks(self, client: RawClient, topic: str, acks: int) -> None:
        assert client.produce(topic, make_batch(1, timestamp_ms=now_ms()), acks=acks).error_code == 21

    def test_unknown_topic_and_partition(self, client: RawClient, topic: str) -> None:
        batch = make_batch(1, timestamp_ms=now_ms())
        assert client.produce("no-such-topic", batch).error_code == 3
        assert client.produce(topic, batch, partition=9).error_code == 3

    def test_one_bad_partition_does_not_spoil_the_others(self, client: RawClient, topic: str) -> None:
        batch = make_batch(1, timestamp_ms=now_ms())
        client.send_produce([(topic, [(0, batch), (5, batch)]), ("no-such-topic", [(0, batch)])])
        answer = client.receive_produce()
        assert [(name, [one.error_code for one in ones]) for name, ones in answer.topics] == [
            (topic, [0, 3]),
            ("no-such-topic", [3]),
        ]

    def test_corrupt_empty_and_old_batches(self, client: RawClient, topic: str) -> None:
        flipped = make_batch(2, timestamp_ms=now_ms())
        flipped[-1] ^= 1
        old = make_batch(1, timestamp_ms=now_ms())
        old[16] = 1
        two = make_batch(1, timestamp_ms=now_ms()) + make_batch(1, timestamp_ms=now_ms())
        outcomes = [client.produce(topic, batch) for batch in (flipped, b"", None, old, two)]
        assert [outcome.error_code for outcome in outcomes] == [2, 87, 87, 87, 87]
        assert all(outcome.base_offset == -1 and outcome.error_message for outcome in outcomes)

    def test_zstd_needs_version_7(self, client: RawClient, topic: str) -> None:
        batch = make_batch(1, timestamp_ms=now_ms(), codec="zstd")
        assert client.produce(topic, batch, version=6).error_code == 76
        assert client.produce(topic, batch, version=7).error_code == 0

    def test_limits_on_size(self, client: RawClient) -> None:
        create(client, "sizes", max_message_bytes="1000")
        overhead = len(make_batch([b""], timestamp_ms=now_ms()))
        exact = make_batch([bytes(1000 - overhead - 3)], timestamp_ms=now_ms())
        while len(exact) < 1000:
            exact = make_batch([bytes(1000 - overhead - 3 + 1000 - len(exact))], timestamp_ms=now_ms())
        assert len(exact) == 1000
        over = make_batch([bytes(1001 - overhead)], timestamp_ms=now_ms())
        assert len(over) > 1000
        assert client.produce("sizes", exact).error_code == 0
        assert client.produce("sizes", over).error_code == 10
        create(client, "segments", segment_bytes="900", max_message_bytes="100000")
        assert client.produce("segments", exact).error_code == 18

    def test_timestamps_out_of_range_name_the_record(self, client: RawClient, topic: str) -> None:
        batch = make_batch([b"a", b"b"], timestamps_ms=[now_ms(), now_ms() + 7_200_000])
        outcome = client.produce(topic, batch)
        assert outcome.error_code == 32
        assert [index for index, _ in outcome.record_errors] == [1]

    def test_compacted_topics_want_keys(self, client: RawClient) -> None:
        create(client, "compacted", cleanup_policy="compact")
        outcome = client.produce("compacted", make_batch(1, timestamp_ms=now_ms()))
        assert (outcome.error_code, [index for index, _ in outcome.record_errors]) == (87, [0])
        assert client.produce("compacted", make_batch(1, timestamp_ms=now_ms(), key=b"k")).error_code == 0

    def test_log_append_time(self, client: RawClient) -> None:
        create(client, "appendtime", message_timestamp_type="LogAppendTime")
        before = now_ms()
        outcome = client.produce("appendtime", make_batch(2, timestamp_ms=5))
        assert before <= outcome.log_append_time_ms <= now_ms()
        header = kernel.scan_headers(client.fetch("appendtime", 0).records)[0]
        assert header.max_timestamp == outcome.log_append_time_ms
        assert header.attributes & 0x08

    def test_acks_0_gives_no_answer(self, client: RawClient, topic: str) -> None:
        client.send_produce([(topic, [(0, make_batch(1, timestamp_ms=now_ms()))])], acks=0)
        assert client.fetch(topic, 0, max_wait_ms=LONG_MS).high_watermark == 1

    def test_an_error_with_acks_0_closes_the_connection(self, broker: BrokerProcess) -> None:
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            client.send_produce([("no-such-topic", [(0, make_batch(1, timestamp_ms=now_ms()))])], acks=0)
            assert client.is_closed()

    def test_a_transactional_id_is_refused(self, client: RawClient, topic: str) -> None:
        outcome = client.produce(topic, make_batch(1, timestamp_ms=now_ms()), transactional_id="tx")
        assert (outcome.error_code, "transactions" in (outcome.error_message or "")) == (53, True)

    def test_the_topics_codec_wins(self, client: RawClient) -> None:
        create(client, "zstd-topic", compression_type="zstd")
        plain = make_batch([b"abc" * 1000] * 5, timestamp_ms=now_ms())
        assert client.produce("zstd-topic", plain).error_code == 0
        assert client.produce("zstd-topic", make_batch(2, timestamp_ms=now_ms(), codec="zstd")).base_offset == 5
        create(client, "plain-topic", compression_type="uncompressed")
        assert client.produce("plain-topic", make_batch([b"abc"], timestamp_ms=now_ms(), codec="gzip")).error_code == 0
        stored = client.fetch("zstd-topic", 0).records
        headers = kernel.scan_headers(stored)
        assert [(header.codec, header.record_count) for header in headers] == [(4, 5), (4, 2)]
        kernel.check_crc(stored, 0, headers[0].size_bytes)
        assert values_of(client.fetch("plain-topic", 0).records) == [(0, b"abc")]


class TestIdempotence:
    def test_duplicates_get_the_original_offset(self, client: RawClient, topic: str) -> None:
        producer_id = client.call(InitProducerIdRequest(transactional_id=None), 4).producer_id
        batches = [
            make_batch(2, timestamp_ms=now_ms(), producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            for sequence in range(0, 12, 2)
        ]
        assert [client.produce(topic, batch).base_offset for batch in batches] == [0, 2, 4, 6, 8, 10]
        # The last five are known; the first has been forgotten.
        assert [client.produce(topic, batch).base_offset for batch in batches[1:]] == [2, 4, 6, 8, 10]
        assert client.produce(topic, batches[0]).error_code == 45
        assert client.fetch(topic, 0).high_watermark == 12

    def test_gaps_and_old_epochs(self, client: RawClient, topic: str) -> None:
        def outcome(epoch: int, sequence: int) -> int:
            batch = make_batch(
                1, timestamp_ms=now_ms(), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            return client.produce(topic, batch).error_code

        producer_id = client.call(InitProducerIdRequest(transactional_id=None), 4).producer_id
        assert outcome(1, 0) == 0
        assert outcome(1, 5) == 45
        assert outcome(0, 1) == 47
        assert outcome(2, 3) == 45
        assert outcome(2, 0) == 0

    def test_sequences_survive_a_crash(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path / "data") as broker:
            with RawClient(broker.bootstrap, PATIENCE_S) as client:
                create(client, "t")
                first = client.call(InitProducerIdRequest(transactional_id=None), 4).producer_id
                batch = make_batch(3, timestamp_ms=now_ms(), producer_id=first, producer_epoch=0, base_sequence=0)
                assert client.produce("t", batch).base_offset == 0
            broker.kill()
            broker.start()
            with RawClient(broker.bootstrap, PATIENCE_S) as client:
                assert client.produce("t", batch).base_offset == 0
                assert client.fetch("t", 0).high_watermark == 3
                assert client.call(InitProducerIdRequest(transactional_id=None), 4).producer_id > first

    def test_producer_ids_differ_and_transactions_are_refused(self, client: RawClient) -> None:
        given = {client.call(InitProducerIdRequest(transactional_id=None), 4).producer_id for _ in range(20)}
        assert len(given) == 20
        assert client.call(InitProducerIdRequest(transactional_id="tx"), 4).error_code == 53
        assert client.call(InitProducerIdRequest(transactional_id=""), 4).error_code == 42


class TestFetch:
    def test_waits_for_an_append(self, broker: BrokerProcess, client: RawClient, topic: str) -> None:
        # Longer than the client waits: the answer comes because of the append.
        client.send_fetch(topic, 0, max_wait_ms=LONG_MS, min_bytes=1)
        with RawClient(broker.bootstrap, PATIENCE_S) as producer:
            producer.produce(topic, make_batch(1, timestamp_ms=now_ms()))
        assert values_of(client.receive_fetch().topics[0][1][0].records) == [(0, b"value-0")]

    def test_waits_no_longer_than_asked(self, client: RawClient, topic: str) -> None:
        began_s = time.monotonic()
        fetched = client.fetch(topic, 0, max_wait_ms=200)
        assert time.monotonic() - began_s > 0.19
        assert (fetched.error_code, bytes(fetched.records), fetched.high_watermark) == (0, b"", 0)

    def test_waits_for_a_number_of_bytes(self, broker: BrokerProcess, client: RawClient, topic: str) -> None:
        batch = make_batch([bytes(400)], timestamp_ms=now_ms())
        client.send_fetch(topic, 0, max_wait_ms=LONG_MS, min_bytes=len(batch) * 3)
        with RawClient(broker.bootstrap, PATIENCE_S) as producer:
            for _ in range(3):
                producer.produce(topic, batch)
        assert len(values_of(client.receive_fetch().topics[0][1][0].records)) == 3

    def test_limits_are_soft_for_the_first_batch_only(self, client: RawClient) -> None:
        create(client, "limits", 2)
        batch = make_batch([bytes(500)], timestamp_ms=now_ms())
        for partition in (0, 0, 1):
            client.produce("limits", batch, partition)
        assert len(kernel.scan_headers(client.fetch("limits", 0, partition_max_bytes=1).records)) == 1
        assert len(kernel.scan_headers(client.fetch("limits", 0, max_bytes=len(batch) + 10).records)) == 1
        assert len(kernel.scan_headers(client.fetch("limits", 0, max_bytes=len(batch) * 2).records)) == 2

    def test_out_of_range_and_at_the_end(self, client: RawClient, topic: str) -> None:
        client.produce(topic, make_batch(2, timestamp_ms=now_ms()))
        assert client.fetch(topic, 3, max_wait_ms=LONG_MS).error_code == 1
        assert client.fetch(topic, -1, max_wait_ms=LONG_MS).error_code == 1
        assert client.fetch(topic, 2, max_wait_ms=0).error_code == 0
        assert client.fetch("no-such-topic", 0, max_wait_ms=LONG_MS).error_code == 3

    def test_leader_epochs(self, client: RawClient, topic: str) -> None:
        assert client.fetch(topic, 0, epoch=0, max_wait_ms=0).error_code == 0
        assert client.fetch(topic, 0, epoch=1, max_wait_ms=0).error_code == 75

    def test_unknown_sessions_are_refused(self, client: RawClient, topic: str) -> None:
        for session_id, session_epoch in ((5, 1), (0, 1), (5, -2), (-1, 2**31 - 1)):
            client.send_fetch(topic, 0, session_id=session_id, session_epoch=session_epoch, max_wait_ms=0)
            assert client.receive_fetch().error_code == 70

    @pytest.mark.parametrize("version", (7, 11, 12))
    def test_a_full_fetch_is_served_whatever_its_session_id(self, client: RawClient, topic: str, version: int) -> None:
        # kafka-go sends id -1; a client that ends or renews a session names the old one.
        client.produce(topic, make_batch(3, timestamp_ms=now_ms()))
        for session_id in (-1, 0, 5, 2**31 - 1, -(2**31)):
            for session_epoch in (0, -1):
                client.send_fetch(topic, 0, session_id=session_id, session_epoch=session_epoch, version=version)
                answer = client.receive_fetch(version)
                assert (answer.error_code, answer.session_id == 0) == (0, session_epoch == -1)
                assert len(kernel.scan_headers(answer.topics[0][1][0].records)) == 1

    def test_read_committed_sees_an_empty_list_of_aborted_transactions(self, client: RawClient, topic: str) -> None:
        client.produce(topic, make_batch(1, timestamp_ms=now_ms()))
        assert client.fetch(topic, 0, isolation_level=1).aborted_transactions == []

    def test_reads_on_across_segments(self, client: RawClient) -> None:
        """An answer ends with its segment, though it has fewer bytes than asked for, and does not wait for more."""
        create(client, "rolled", segment_bytes="2000")
        for _ in range(10):
            client.produce("rolled", make_batch([bytes(600)], timestamp_ms=now_ms()))
        offset, answers = 0, []
        while offset < 10:
            # Only an answer from the last segment may wait until the time is over.
            max_wait_ms = LONG_MS if offset < 8 else 0
            answer = client.fetch("rolled", offset, min_bytes=5000, max_wait_ms=max_wait_ms)
            answers.append([header.base_offset for header in kernel.scan_headers(answer.records)])
            offset = answers[-1][-1] + 1
        assert answers == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]

    def test_a_deleted_topic_ends_the_wait(self, broker: BrokerProcess, client: RawClient) -> None:
        create(client, "doomed")
        client.send_fetch("doomed", 0, max_wait_ms=LONG_MS)
        with RawClient(broker.bootstrap, PATIENCE_S) as other:
            other.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="doomed")], timeout_ms=50_000), 6)
        assert client.receive_fetch().topics[0][1][0].error_code in (3, 6)


class TestOffsets:
    def test_ends_and_times(self, client: RawClient, topic: str) -> None:
        base = now_ms() - 1000
        client.produce(topic, make_batch([b"a", b"b"], timestamps_ms=[base, base + 50]))
        client.produce(topic, make_batch([b"c", b"d"], timestamps_ms=[base + 200, base + 100]))
        assert list_offset(client, topic, -1) == (0, 4, -1, 0)
        assert list_offset(client, topic, -1, isolation=1) == (0, 4, -1, 0)
        assert list_offset(client, topic, -2) == (0, 0, -1, 0)
        assert list_offset(client, topic, -3) == (0, 2, base + 200, 0)
        assert list_offset(client, topic, 0) == (0, 0, base, 0)
        assert list_offset(client, topic, base + 10) == (0, 1, base + 50, 0)
        assert list_offset(client, topic, base + 60) == (0, 2, base + 200, 0)
        assert list_offset(client, topic, base + 201) == (0, -1, -1, -1)

    def test_errors(self, client: RawClient, topic: str) -> None:
        assert list_offset(client, "no-such-topic", -1)[0] == 3
        assert list_offset(client, topic, -1, epoch=3)[0] == 75
        assert list_offset(client, topic, -9)[0] == 35

    def test_epoch_ends(self, client: RawClient, topic: str) -> None:
        client.produce(topic, make_batch(3, timestamp_ms=now_ms()))

        def end(asked: int, current: int = -1) -> tuple[int, int, int]:
            part = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=asked)
            request = OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[part])]
            )
            found = client.call(request, 4).topics[0].partitions[0]
            return found.error_code, found.leader_epoch, found.end_offset

        assert end(0) == (0, 0, 3)
        assert end(0, 4) == (75, -1, -1)
        assert end(9)[0] == 0


class TestTopics:
    def test_metadata_creates_what_it_is_asked_for(self, client: RawClient) -> None:
        names = [MetadataRequestTopic(name=name) for name in ("auto-made", "bad name!", "__consumer_offsets")]
        request = MetadataRequest(topics=names, allow_auto_topic_creation=True)
        wanted = {"auto-made": (0, 2), "bad name!": (17, 0), "__consumer_offsets": (3, 0)}

        def is_made() -> bool:
            # An answer waits two seconds for it; on a slow host that is not enough.
            found = client.call(request, 9).topics
            return {topic.name: (topic.error_code, len(topic.partitions)) for topic in found} == wanted

        wait_until(is_made, "the topic to be made, and it alone")
        answer = client.call(request, 9)
        assert (answer.controller_id, len(answer.brokers), len(answer.cluster_id)) == (1, 1, 22)

    def test_metadata_without_creation(self, client: RawClient, topic: str) -> None:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="not-there")], allow_auto_topic_creation=False)
        assert client.call(asked, 12).topics[0].error_code == 3
        assert client.call(MetadataRequest(topics=[]), 1).topics == []
        everything = client.call(MetadataRequest(topics=None), 12).topics
        found = next(one for one in everything if one.name == topic)
        assert (found.topic_id != bytes(16), found.partitions[0].leader_id, found.partitions[0].leader_epoch) == (
            True,
            1,
            0,
        )
        # In version 0 no topics are all topics. Other tests may make and delete some meanwhile.
        again = {one.name for one in client.call(MetadataRequest(topics=[]), 0).topics}
        later = {one.name for one in client.call(MetadataRequest(topics=None), 12).topics}
        assert {one.name for one in everything} & later <= again

    def test_metadata_by_id(self, client: RawClient, topic: str) -> None:
        by_name = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12).topics[0]
        asked = [MetadataRequestTopic(name=None, topic_id=by_name.topic_id)]
        assert client.call(MetadataRequest(topics=asked), 12).topics[0].name == topic
        asked = [MetadataRequestTopic(name=None, topic_id=b"x" * 16)]
        assert client.call(MetadataRequest(topics=asked), 12).topics[0].error_code == 100

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            (CreatableTopic(name="bad/name", num_partitions=1, replication_factor=1), 17),
            (CreatableTopic(name="x", num_partitions=0, replication_factor=1), 37),
            (CreatableTopic(name="x", num_partitions=1, replication_factor=0), 38),
            (CreatableTopic(name="x", num_partitions=1, replication_factor=2), 38),
            (CreatableTopic(name="x", num_partitions=1_000_000, replication_factor=1), 44),
            (
                CreatableTopic(
                    name="x",
                    num_partitions=1,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name="retention.mss", value="1")],
                ),
                40,
            ),
            (
                CreatableTopic(
                    name="x",
                    num_partitions=1,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name="retention.ms", value="soon")],
                ),
                40,
            ),
        ],
    )
    def test_what_cannot_be_created(self, client: RawClient, topic: CreatableTopic, code: int) -> None:
        result = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 7).topics[0]
        assert result.error_code == code
        assert result.error_message

    def test_creation_twice_and_validation_only(self, client: RawClient) -> None:
        topic = CreatableTopic(name="once", num_partitions=-1, replication_factor=-1)
        validated = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=50_000, validate_only=True), 7).topics[0]
        assert (validated.error_code, validated.num_partitions) == (0, 2)
        assert client.produce("once", make_batch(1, timestamp_ms=now_ms())).error_code == 3
        created = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 7).topics[0]
        assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 2, 1)
        assert client.produce("once", make_batch(1, timestamp_ms=now_ms())).error_code == 0
        assert client.call(CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 7).topics[0].error_code == 36
        assert client.call(CreateTopicsRequest(topics=[topic, topic], timeout_ms=50_000), 7).topics[0].error_code == 42

    def test_deletion_and_a_new_topic_of_the_name(self, client: RawClient) -> None:
        create(client, "phoenix")
        client.produce("phoenix", make_batch(3, timestamp_ms=now_ms()))
        doomed = DeleteTopicsRequest(topics=[DeleteTopicState(name="phoenix")], timeout_ms=50_000)
        assert client.call(doomed, 6).responses[0].error_code == 0
        assert client.produce("phoenix", make_batch(1, timestamp_ms=now_ms())).error_code == 3
        assert client.call(doomed, 6).responses[0].error_code == 3
        create(client, "phoenix")
        assert client.fetch("phoenix", 0, max_wait_ms=0).high_watermark == 0
        assert client.produce("phoenix", make_batch(1, timestamp_ms=now_ms())).base_offset == 0
        by_name = client.call(DeleteTopicsRequest(topic_names=["phoenix"], timeout_ms=50_000), 5)
        assert by_name.responses[0].error_code == 0

    def test_more_partitions(self, client: RawClient, topic: str) -> None:
        def extend(count: int) -> int:
            wanted = [CreatePartitionsTopic(name=topic, count=count, assignments=None)]
            return client.call(CreatePartitionsRequest(topics=wanted, timeout_ms=50_000), 3).results[0].error_code

        assert extend(3) == 0
        assert client.produce(topic, make_batch(1, timestamp_ms=now_ms()), 2).error_code == 0
        assert extend(3) == 37
        assert extend(20_000) == 44

    def test_many_partitions_at_once(self, client: RawClient) -> None:
        create(client, "wide", 300)
        assert client.produce("wide", make_batch(1, timestamp_ms=now_ms()), 299).error_code == 0

    def test_settings(self, client: RawClient) -> None:
        create(client, "configured", retention_ms="1234")
        resource = DescribeConfigsResource(
            resource_type=2, resource_name="configured", configuration_keys=["retention.ms", "segment.bytes"]
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
        result = client.call(request, 4).results[0]
        found = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
        assert found == {"retention.ms": ("1234", 1), "segment.bytes": ("1073741824", 5)}
        assert all(entry.documentation and entry.config_type for entry in result.configs)
        broker = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        entries = client.call(DescribeConfigsRequest(resources=[broker]), 4).results[0].configs
        assert {entry.name: entry.config_source for entry in entries}["num.partitions"] == 4
        other = DescribeConfigsResource(resource_type=4, resource_name="7", configuration_keys=None)
        assert client.call(DescribeConfigsRequest(resources=[other]), 4).results[0].error_code == 42
        missing = DescribeConfigsResource(resource_type=2, resource_name="not-there", configuration_keys=None)
        assert client.call(DescribeConfigsRequest(resources=[missing]), 4).results[0].error_code == 3

    def test_the_cluster(self, broker: BrokerProcess, client: RawClient) -> None:
        answer = client.call(DescribeClusterRequest(endpoint_type=1), 1)
        host, _, port = broker.bootstrap.rpartition(":")
        assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [(1, host, int(port))]
        assert (answer.controller_id, answer.error_code) == (1, 0)
        assert client.call(DescribeClusterRequest(endpoint_type=2), 1).error_code == 114
        assert client.call(DescribeClusterRequest(endpoint_type=3), 1).error_code == 115

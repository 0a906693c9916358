"""Fetch sessions and topic ids on the wire: what is named, what is answered, and which errors end what."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafkalite.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafkalite.wire.packed import FetchPartition, FetchRequest, FetchResponse, Topic
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch, values_of
from tests.patience import PATIENCE_S, wait_until

BY_NAME, BY_ID = 12, 17
# Told to a broker of four slots.
SLOTS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {"max.incremental.fetch.session.cache.slots": SLOTS}
    with BrokerProcess(tmp_path_factory.mktemp("sessions") / "data", overrides=overrides) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap, PATIENCE_S) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    """A new topic of four partitions."""
    name = f"t{time.monotonic_ns()}"
    create(client, name)
    return name


def create(client: RawClient, name: str, partitions: int = 4) -> None:
    wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    result = client.call(CreateTopicsRequest(topics=[wanted], timeout_ms=50_000), 7).topics[0]
    assert (result.error_code, result.error_message) == (0, None)


def delete(client: RawClient, name: str) -> None:
    result = client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=50_000), 6).responses[0]
    assert result.error_code == 0


def id_of(client: RawClient, name: str) -> bytes:
    return client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12).topics[0].topic_id


def batch(*values: bytes) -> bytearray:
    return make_batch(list(values) or 1, timestamp_ms=time.time_ns() // 1_000_000)


class Reader:
    """One fetch session, driven by hand."""

    def __init__(self, client: RawClient, topic: Topic, version: int) -> None:
        self.client, self.topic, self.version = client, topic, version
        self.session_id = 0
        self.epoch = 0

    def fetch(
        self, offsets: dict[int, int] | None = None, *, forget: Sequence[int] = (), max_wait_ms: int = 0, **options: int
    ) -> FetchResponse:
        """Fetch, naming the partitions whose offsets are given."""
        asked = [FetchPartition(number, offset, 1 << 20) for number, offset in (offsets or {}).items()]
        request = FetchRequest(
            [(self.topic, asked)] if asked else [],
            max_wait_ms,
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten_topics=[(self.topic, forget)] if forget else (),
            **options,
        )
        answer = self.client.ask_fetch(request, self.version)
        if not answer.error_code:
            self.session_id = answer.session_id
            self.epoch += 1
        return answer


def told(answer: FetchResponse) -> dict[int, tuple[int, int, list[bytes]]]:
    """What an answer says of each partition: error, high watermark, values."""
    assert answer.error_code == 0
    return {
        one.partition: (one.error_code, one.high_watermark, [value for _, value in values_of(one.records)])
        for _, partitions in answer.topics
        for one in partitions
    }


@pytest.fixture(params=[BY_NAME, BY_ID], ids=["by name", "by id"])
def reader(client: RawClient, topic: str, request: pytest.FixtureRequest) -> Reader:
    return Reader(client, id_of(client, topic) if request.param == BY_ID else topic, request.param)


def test_an_answer_names_what_has_news(broker: BrokerProcess, client: RawClient, topic: str, reader: Reader) -> None:
    client.produce(topic, batch(b"old"), 1)
    opened = reader.fetch(dict.fromkeys(range(4), 0))
    assert opened.session_id > 0
    assert told(opened) == {0: (0, 0, []), 1: (0, 1, [b"old"]), 2: (0, 0, []), 3: (0, 0, [])}
    # As it is not said that the records have come they are sent again.
    assert told(reader.fetch()) == {1: (0, 1, [b"old"])}
    assert told(reader.fetch({1: 1})) == {}
    assert told(reader.fetch()) == {}
    client.produce(topic, batch(b"new"), 3)
    assert told(reader.fetch()) == {3: (0, 1, [b"new"])}
    assert told(reader.fetch({3: 1})) == {}
    # A deletion of records moves the log start, and nothing else.
    below = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=3, offset=1)])
    assert (
        client.call(DeleteRecordsRequest(topics=[below], timeout_ms=50_000), 2).topics[0].partitions[0].error_code == 0
    )
    answer = reader.fetch()
    assert told(answer) == {3: (0, 1, [])}
    assert answer.topics[0][1][0].log_start_offset == 1
    assert told(reader.fetch()) == {}


def test_a_waiting_fetch_is_woken_by_any_of_its_partitions(
    broker: BrokerProcess, client: RawClient, topic: str, reader: Reader
) -> None:
    reader.fetch(dict.fromkeys(range(4), 0))
    offsets = [0] * 4
    with RawClient(broker.bootstrap, PATIENCE_S) as producer:
        for number in (2, 0, 2, 2, 1):
            assert told(reader.fetch(dict(enumerate(offsets)))) == {}
            request = FetchRequest([], 600_000, session_id=reader.session_id, session_epoch=reader.epoch)
            client.send_request(request, reader.version)
            producer.produce(topic, batch(b"v"), number)
            offsets[number] += 1
            assert told(client.receive_fetch(reader.version)) == {number: (0, offsets[number], [b"v"])}
            reader.epoch += 1


def test_a_deleted_topic_ends_the_wait_of_a_session(
    broker: BrokerProcess, client: RawClient, topic: str, reader: Reader
) -> None:
    reader.fetch({0: 0})
    client.send_request(FetchRequest([], 600_000, session_id=reader.session_id, session_epoch=1), reader.version)
    with RawClient(broker.bootstrap, PATIENCE_S) as other:
        delete(other, topic)
        reader.epoch += 1
        assert [code for code, _, _ in told(client.receive_fetch(reader.version)).values()] in ([3], [6])
        assert told(reader.fetch()) == {0: (3, -1, [])}
        create(other, topic)
    # It is read again under its name, but the id is another topic's.
    again = told(reader.fetch())
    assert again == ({0: (0, 0, [])} if reader.version == BY_NAME else {0: (103, -1, [])})


def test_forgotten_partitions_are_not_told_of_and_the_last_one_ends_the_session(
    client: RawClient, topic: str, reader: Reader
) -> None:
    reader.fetch({0: 0, 1: 0})
    for number in (0, 1):
        client.produce(topic, batch(b"v"), number)
    assert told(reader.fetch(forget=[0])) == {1: (0, 1, [b"v"])}
    assert told(reader.fetch({2: 0}, forget=[3])) == {1: (0, 1, [b"v"]), 2: (0, 0, [])}
    session_id, epoch = reader.session_id, reader.epoch
    answer = reader.fetch(forget=[1, 2])
    assert (told(answer), answer.session_id) == ({}, 0)
    reader.session_id, reader.epoch = session_id, epoch + 1
    assert reader.fetch().error_code == 70


def test_sessions_are_known_by_id_epoch_and_connection(
    broker: BrokerProcess, client: RawClient, topic: str, reader: Reader
) -> None:
    reader.fetch({0: 0})
    reader.epoch = 5
    assert reader.fetch().error_code == 71
    with RawClient(broker.bootstrap, PATIENCE_S) as other:
        stranger = Reader(other, reader.topic, reader.version)
        stranger.session_id, stranger.epoch = reader.session_id, 1
        assert stranger.fetch().error_code == 70
    reader.epoch = 1
    assert told(reader.fetch()) == {}
    # One that is opened closes the one before.
    before = reader.session_id
    reader.epoch = 0
    assert told(reader.fetch({1: 0})) == {1: (0, 0, [])}
    assert reader.session_id not in (0, before)
    now, reader.session_id = reader.session_id, before
    assert reader.fetch().error_code == 70
    reader.session_id, reader.epoch = now, -1
    assert reader.fetch({0: 0}).session_id == 0
    reader.session_id, reader.epoch = now, 1
    assert reader.fetch().error_code == 70


def test_a_session_does_not_change_from_names_to_ids(client: RawClient, topic: str) -> None:
    reader = Reader(client, topic, BY_NAME)
    reader.fetch({0: 0})
    reader.version = BY_ID
    assert reader.fetch().error_code == 106


def test_clients_without_a_slot_are_served_without_a_session(broker: BrokerProcess, topic: str) -> None:
    clients = [RawClient(broker.bootstrap, PATIENCE_S) for _ in range(SLOTS + 1)]
    try:
        readers = [Reader(each, topic, BY_NAME) for each in clients]
        assert [reader.fetch({0: 0}).session_id > 0 for reader in readers] == [True] * SLOTS + [False]
        # The slot of one that goes is free.
        clients[0].close()

        def has_a_session() -> bool:
            readers[-1].epoch = 0
            return readers[-1].fetch({0: 0}).session_id > 0

        wait_until(has_a_session, "a slot for the last client")
    finally:
        for each in clients:
            each.close()


def test_no_partition_starves_behind_one_that_always_has_more(client: RawClient, topic: str, reader: Reader) -> None:
    for number in range(4):
        for _ in range(3):
            client.produce(topic, batch(bytes(1000)), number)
    reader.fetch(dict.fromkeys(range(4), 0), max_bytes=1)
    served = [number for _ in range(8) for number in told(reader.fetch(max_bytes=1))]
    assert sorted(served) == sorted(list(range(4)) * 2)
    assert all(first != second for first, second in pairwise(served))


def test_the_next_request_of_a_session_ends_the_wait_of_the_one_before(
    client: RawClient, topic: str, reader: Reader
) -> None:
    reader.fetch({0: 0})
    for epoch in (1, 2):
        # Longer than the client waits.
        wait_ms = 600_000 if epoch == 1 else 0
        client.send_request(
            FetchRequest([], wait_ms, session_id=reader.session_id, session_epoch=epoch), reader.version
        )
    assert [told(client.receive_fetch(reader.version)) for _ in range(2)] == [{}, {}]


def test_topic_ids_that_nobody_knows(client: RawClient, topic: str) -> None:
    asked = [FetchPartition(0, 0, 1 << 20)]
    answer = client.ask_fetch(FetchRequest([(b"\x01" * 16, asked), (id_of(client, topic), asked)], 0))
    assert [one.error_code for _, partitions in answer.topics for one in partitions] == [100, 0]
    # In a session it is looked for again with each request.
    reader = Reader(client, b"\x01" * 16, BY_ID)
    assert told(reader.fetch({0: 0})) == {0: (100, -1, [])}
    assert told(reader.fetch()) == {0: (100, -1, [])}


@pytest.mark.parametrize("version", [4, 6, 7, 12, 17])
def test_no_client_fetches_as_a_replica_without_authentication(client: RawClient, topic: str, version: int) -> None:
    name: Topic = id_of(client, topic) if version >= 13 else topic
    asked = [(name, [FetchPartition(0, 0, 1 << 20)])]
    answer = client.ask_fetch(FetchRequest(asked, 0, replica_id=2, replica_epoch=5), version)
    refused = [one.error_code for _, partitions in answer.topics for one in partitions]
    assert (answer.error_code, refused) == ((31, []) if version >= 7 else (0, [31]))
    # The same request of a consumer is served.
    answer = client.ask_fetch(FetchRequest(asked, 0), version)
    served = [one.error_code for _, partitions in answer.topics for one in partitions]
    assert (answer.error_code, served) == (0, [0])

"""The broker that client tests use in their own process answers as real ones do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import NotLeaderOrFollower
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages import fetch, list_offsets, produce
from tests.lab.batches import make_batch, values_of
from tests.lab.model_broker import ModelBroker
from tests.seeds import SEED

PRODUCER_IDS = itertools.count(5_000_000)
Answer = tuple[object, ...]


class Asked:
    """One partition of a broker, asked as a client would ask."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        client.refresh([topic], self.deadline())

    def deadline(self) -> Deadline:
        return Deadline.after_ms(20_000)

    def leader(self) -> int:
        return self.client.leading(TopicPartition(self.topic, 0)).leader

    def produce(self, data: bytearray, partition: int = 0) -> Answer:
        part = produce.PartitionProduceData(index=partition, records=data)
        topic = produce.TopicProduceData(name=self.topic, partition_data=[part])
        request = produce.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
        answer = self.client.request_to(self.leader(), ApiKey.PRODUCE, request, self.deadline())
        (found,) = answer.responses[0].partition_responses
        return found.error_code, found.base_offset

    def fetch(self, offset: int, max_bytes: int, partition: int = 0) -> Answer:
        part = fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        topic = fetch.FetchTopic(topic=self.topic, partitions=[part])
        request = fetch.FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=1 << 20, topics=[topic])
        answer = self.client.request_to(self.leader(), ApiKey.FETCH, request, self.deadline())
        (found,) = answer.responses[0].partitions
        read = values_of(bytes(found.records)) if found.records is not None and len(found.records) else []
        ends = () if found.error_code else (found.high_watermark, found.log_start_offset)
        return found.error_code, read, *ends

    def end(self, which: int, partition: int = 0) -> Answer:
        part = list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=which)
        topic = list_offsets.ListOffsetsTopic(name=self.topic, partitions=[part])
        request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic])
        answer = self.client.request_to(self.leader(), ApiKey.LIST_OFFSETS, request, self.deadline())
        (found,) = answer.topics[0].partitions
        return found.error_code, found.offset


@pytest.fixture
def both(bootstrap: str) -> Iterator[tuple[Asked, Asked]]:
    topic = f"model-{next(PRODUCER_IDS)}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(topic, 1, 1)
    model = ModelBroker({topic: 1})
    clients = [
        ClusterClient(ClientConfig((bootstrap,))),
        ClusterClient(ClientConfig(("m:1",)), SYSTEM_CLOCK, model.open),
    ]
    asked = Asked(clients[0], topic), Asked(clients[1], topic)
    # Apache Kafka's controller names a leader a moment before the broker knows that it leads.
    deadline = Deadline.after_ms(20_000)
    while asked[0].fetch(0, 1)[0] == NotLeaderOrFollower.code:
        assert deadline.left_s() > 0, "nobody leads"
    yield asked
    for client in clients:
        client.close()
    model.close()


def test_sequences_reads_and_ends_are_answered_alike(both: tuple[Asked, Asked]) -> None:
    source = random.Random(SEED)
    producer_id, epoch, following, end = next(PRODUCER_IDS), 0, 0, 0
    sent: list[tuple[int, int]] = []
    for step in range(150):
        act = source.random()
        if act < 0.4:
            count = source.randint(1, 4)
            first = following
        elif act < 0.6 and sent:
            # A repetition, of the last five or older.
            first, count = source.choice(sent[-7:])
        elif act < 0.7:
            first, count = following + source.choice([-1, 1, 5]), 2
            if first < 0:
                continue
        elif act < 0.75:
            epoch, following, sent = epoch + 1, 0, []
            first, count = source.choice([0, 3]), 1
        else:
            offset, max_bytes = source.randint(0, end + 2), source.choice([1, 100, 300, 1 << 20])
            answers = [each.fetch(offset, max_bytes) for each in both]
            # A broker may stop before the limit: ours where its index has an entry, a few batches earlier.
            (code, read, *ends), (model_code, model_read, *model_ends) = answers
            assert (code, ends) == (model_code, model_ends), (SEED, step, offset, max_bytes)
            assert read == model_read[: len(read)], (SEED, step, offset, max_bytes)
            assert bool(read) == bool(model_read), (SEED, step, offset, max_bytes)
            for which in (-1, -2):
                found = [each.end(which) for each in both]
                assert found[0] == found[1], (SEED, step, which)
            continue
        batch = make_batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)
        answers = [each.produce(batch) for each in both]
        assert answers[0] == answers[1], (SEED, step, epoch, first, count)
        if answers[0][0] == 0 and answers[0][1] == end:
            sent.append((first, count))
            following, end = first + count, end + count


def test_a_partition_that_is_not_there_is_unknown_to_both(both: tuple[Asked, Asked]) -> None:
    for ask in (
        lambda one: one.produce(make_batch(), 7)[0],
        lambda one: one.fetch(0, 1, 7)[0],
        lambda one: one.end(-1, 7)[0],
    ):
        answers = [ask(each) for each in both]
        assert answers == [3, 3]

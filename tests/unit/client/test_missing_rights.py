"""A right that is missing: said at once, with what is needed, and tried again when the next record or poll asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite import Consumer, Producer
from spark_kafkalite.errors import ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from spark_kafkalite.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdResponse
from spark_kafkalite.wire.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from spark_kafkalite.wire.rights import refusal
from tests.lab.model_broker import ModelBroker
from tests.patience import PATIENCE_S

TOPIC, GROUP, CLUSTER = 29, 30, 31
FAST = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5}


class Rights:
    """Answers with errors for what is taken away."""

    def __init__(self, broker: ModelBroker) -> None:
        self.taken: set[int] = set()
        self._broker = broker
        broker.answer_first = self._answer

    def _answer(self, api_key: int, request: Any) -> Any:
        if api_key not in self.taken:
            return None
        host, port = self._broker.address
        if api_key == ApiKey.METADATA:
            return MetadataResponse(
                brokers=[MetadataResponseBroker(node_id=1, host=host, port=port)],
                topics=[MetadataResponseTopic(error_code=TOPIC, name=each.name) for each in request.topics],
            )
        if api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(error_code=CLUSTER)
        if api_key == ApiKey.FETCH:
            parts = [PartitionData(partition_index=0, error_code=TOPIC, high_watermark=-1)]
            return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=parts)])
        return FindCoordinatorResponse(
            error_code=GROUP, coordinators=[Coordinator(key="g", error_code=GROUP)], error_message=None
        )


@pytest.fixture
def broker() -> Iterator[ModelBroker]:
    made = ModelBroker({"t": 1})
    made.listen()
    yield made
    made.close()


@pytest.fixture
def rights(broker: ModelBroker) -> Rights:
    return Rights(broker)


@pytest.fixture
def settings(broker: ModelBroker) -> dict[str, object]:
    host, port = broker.address
    return {**FAST, "bootstrap.servers": f"{host}:{port}"}


def test_a_topic_that_may_not_be_seen_is_not_said_to_be_unknown(rights: Rights, settings: dict[str, object]) -> None:
    rights.taken = {ApiKey.METADATA}
    needed = "topic 't'.*DESCRIBE on the topic.*CREATE"
    with Producer(settings) as producer, pytest.raises(TopicAuthorizationFailed, match=needed):
        producer.send("t", b"x")
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        with pytest.raises(TopicAuthorizationFailed, match=needed):
            consumer.poll(timeout_ms=20_000)
        rights.taken = set()
        consumer.seek_to_beginning()
        assert consumer.position(TopicPartition("t", 0)) == 0


def test_records_fail_when_their_topic_may_not_be_seen_any_more(
    broker: ModelBroker, rights: Rights, settings: dict[str, object]
) -> None:
    with Producer(settings) as producer:
        producer.send("t", b"1").result(PATIENCE_S)
        rights.taken = {ApiKey.METADATA}
        # As when they are old, which is looked at once a second.
        producer._cluster.request_refresh()
        # Some are sent before metadata are asked for again.
        with pytest.raises(TopicAuthorizationFailed, match="DESCRIBE"):
            while True:
                producer.send("t", b"2").result(PATIENCE_S)
        rights.taken = set()
        while True:
            try:
                producer.send("t", b"3").result(PATIENCE_S)
                break
            except TopicAuthorizationFailed:
                continue


def test_a_producer_id_that_may_not_be_had_is_said_to_need_a_right(rights: Rights, settings: dict[str, object]) -> None:
    rights.taken = {ApiKey.INIT_PRODUCER_ID}
    with Producer(settings) as producer:
        with pytest.raises(ClusterAuthorizationFailed, match=r"IDEMPOTENT_WRITE.*WRITE on a topic.*enable\.idemp"):
            producer.send("t", b"x").result(PATIENCE_S)
        rights.taken = set()
        producer.send("t", b"x").result(PATIENCE_S)


def test_a_poll_raises_what_may_not_be_read_and_a_later_one_reads_it(
    rights: Rights, settings: dict[str, object]
) -> None:
    with Producer(settings) as producer:
        producer.send("t", b"x").result(PATIENCE_S)
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        rights.taken = {ApiKey.FETCH}
        for _ in range(2):
            with pytest.raises(TopicAuthorizationFailed, match=r"t-0.*READ on the topic"):
                consumer.poll(timeout_ms=20_000)
        rights.taken = set()
        got: list[bytes | None] = []
        while not got:
            try:
                got = [record.value for record in consumer.poll(timeout_ms=20_000)]
            except TopicAuthorizationFailed:
                continue  # fetched before the right was back
        assert got == [b"x"]


def test_a_group_that_may_not_be_seen_is_said_to_need_a_right(rights: Rights, settings: dict[str, object]) -> None:
    rights.taken = {ApiKey.FIND_COORDINATOR}
    with Consumer({**settings, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        for _ in range(2):
            with pytest.raises(GroupAuthorizationFailed, match=r"group 'g'.*DESCRIBE on the group"):
                consumer.poll(timeout_ms=20_000)


@pytest.mark.parametrize("code", [3, 29, 30, 31, 58])
def test_only_a_missing_right_is_named(code: int) -> None:
    text = str(refusal(ApiKey.PRODUCE, code, "t-0: refused"))
    assert ("principal needs" in text) == (code in (29, 31))
    assert type(refusal(ApiKey.PRODUCE, code, None)) is type(error_for(code))

"""ConsumerConnector over the embedded registry in this process: no broker, so that nothing is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import ConsumerConnector, TopicPartition
from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry import consumer_nodes, znodes
from spark_kafkalite.registry.store import SessionExpired, Store
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import TopicAssignment
from tests.patience import wait_until
from tests.unit.client.registry_consumer.recording_store import RecordingStore

TIMEOUT_S = 10
PARTITION = TopicPartition("t", 0)
OFFSET_PATH = consumer_nodes.offset_path("g", *PARTITION)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedRegistry]:
    with EmbeddedRegistry(tmp_path) as opened:
        store = EmbeddedStore(opened)
        for path in znodes.PERSISTENT_PATHS:
            store.create(path, make_parents=True).result(TIMEOUT_S)
        topic = TopicAssignment(bytes(16), {PARTITION.partition: (BrokerId(1),)}).encode()
        store.create(znodes.topic_path(PARTITION.topic), topic).result(TIMEOUT_S)
        store.create(OFFSET_PATH, b"5", make_parents=True).result(TIMEOUT_S)
        yield opened


def test_a_commit_is_not_tried_again_in_a_later_session(registry: EmbeddedRegistry) -> None:
    """The partition may have been another consumer's meanwhile, whose commits must not be undone."""
    sessions: list[RecordingStore] = []

    def open_registry() -> Store:
        sessions.append(RecordingStore(EmbeddedStore(registry)))
        return sessions[-1]  # type: ignore[return-value]

    # There is no broker to ask for positions: closing waits for the end of the try.
    settings = {"group.id": "g", "offsets.channel.backoff.ms": 0, "auto.commit.enable": False, "socket.timeout.ms": 100}
    with ConsumerConnector(settings, open_registry=open_registry) as consumer:
        consumer.create_message_streams({PARTITION.topic: 1})

        def session_goes_with_the_answer(method: str, path: str) -> bool:
            if (method, path) != ("set", OFFSET_PATH):
                return False
            sessions[0].lost = lambda method, path: False
            registry.expire(sessions[0].session_id).result(TIMEOUT_S)
            wait_until(
                lambda: len(sessions) > 1 and PARTITION in consumer.owned_partitions, "the consumer to join again"
            )
            sessions[1].set(OFFSET_PATH, b"9").result(TIMEOUT_S)
            return True

        sessions[0].lost = session_goes_with_the_answer
        with pytest.raises(SessionExpired):
            consumer.rewind({PARTITION: 3})
        assert sessions[1].get(OFFSET_PATH).result(TIMEOUT_S)[0] == b"9"
        # The new session's own commits are made.
        consumer.rewind({PARTITION: 4})
        assert sessions[1].get(OFFSET_PATH).result(TIMEOUT_S)[0] == b"4"

"""A right that is missing: one line that names the topic or group and the operation, raised and not tried again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaliteError,
    TopicAuthorizationFailed,
)
from tests.interop.security.round_trip import new_name
from tests.lab.secure_kafka import BOB, CAROL, SCRAM_256, SecuredListener, SecureKafka
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

pytestmark = pytest.mark.kafka

Settings = dict[str, str]
# Asked for in the soak only.
LIMIT_S = 10


@pytest.fixture(scope="module")
def topic(secure_kafka: SecureKafka) -> str:
    """A topic that Carol has no right on, and Bob may read."""
    name = f"rights-{new_name()}"
    with Admin(secure_kafka.client_settings(SecuredListener.SSL)) as admin:
        admin.create_topic(name, 1, 1)
    secure_kafka.allow(BOB, "Read", resource=("topic", name))
    return name


@pytest.fixture(scope="module")
def hidden_topic(secure_kafka: SecureKafka) -> str:
    """A topic on which neither Carol nor Bob has a right."""
    name = f"hidden-{new_name()}"
    with Admin(secure_kafka.client_settings(SecuredListener.SSL)) as admin:
        admin.create_topic(name, 1, 1)
    return name


@pytest.fixture
def carol(secure_kafka: SecureKafka) -> Settings:
    return secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_256, CAROL)


@pytest.fixture
def bob(secure_kafka: SecureKafka) -> Settings:
    return secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_256, BOB)


@contextmanager
def refused(kind: type[KafkaliteError], *words: str) -> Iterator[None]:
    """The block ends with this error, in one line that has the words."""
    started = time.monotonic()
    with pytest.raises(kind) as raised:
        yield
    text = str(raised.value)
    if SOAK:
        assert time.monotonic() - started < LIMIT_S
    assert "\n" not in text
    assert [word for word in words if not re.search(word, text)] == [], text


def poll(consumer: Consumer) -> None:
    for _ in range(120):
        consumer.poll(500)


def test_a_topic_that_may_not_be_written(carol: Settings, bob: Settings, topic: str) -> None:
    for settings, operation in ((carol, "DESCRIBE|WRITE"), (bob, "WRITE")):
        for idempotent in (False, True):
            producer = Producer(settings, enable_idempotence=idempotent)
            # Who may write no topic at all may not have a producer id either.
            kind = ClusterAuthorizationFailed if idempotent and settings is bob else TopicAuthorizationFailed
            with refused(kind, *([topic] if kind is TopicAuthorizationFailed else []), operation):
                producer.send(topic, b"x").result(PATIENCE_S)
            producer.close(0)


def test_a_topic_that_may_not_be_read(carol: Settings, topic: str) -> None:
    with Consumer(carol, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        with refused(TopicAuthorizationFailed, topic, "READ|DESCRIBE"):
            poll(consumer)


def test_a_group_that_may_not_be_joined(bob: Settings, topic: str) -> None:
    with Consumer(bob, group_id="carols-group", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        with refused(GroupAuthorizationFailed, "carols-group", "READ"):
            poll(consumer)
    with Consumer(bob, group_id="carols-group") as consumer:
        consumer.assign([(topic, 0)])
        with refused(GroupAuthorizationFailed, "carols-group", "READ|DESCRIBE"):
            consumer.commit({(topic, 0): 1})


def test_a_topic_of_a_group_that_may_not_be_read(secure_kafka: SecureKafka, carol: Settings, topic: str) -> None:
    secure_kafka.allow(CAROL, "Read", resource=("group", "carols-group"))
    with Consumer(carol, group_id="carols-group", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        with refused(TopicAuthorizationFailed, topic, "READ|DESCRIBE"):
            poll(consumer)


def test_what_only_administrators_may(bob: Settings, carol: Settings, topic: str, hidden_topic: str) -> None:
    calls: list[tuple[type[KafkaliteError], str, Callable[[Admin], object]]] = [
        (TopicAuthorizationFailed, "CREATE", lambda admin: admin.create_topic("bobs-own", 1, 1)),
        (TopicAuthorizationFailed, "DELETE", lambda admin: admin.delete_topics([topic])),
        (TopicAuthorizationFailed, "ALTER", lambda admin: admin.create_partitions({topic: 2})),
        (TopicAuthorizationFailed, "DELETE", lambda admin: admin.delete_records({(topic, 0): 0})),
        (TopicAuthorizationFailed, "DESCRIBE_CONFIGS", lambda admin: admin.describe_configs(topic=topic)),
        (ClusterAuthorizationFailed, "DESCRIBE", lambda admin: admin.describe_log_dirs()),
        (GroupAuthorizationFailed, "DESCRIBE", lambda admin: admin.group_offsets("a-group")),
        (GroupAuthorizationFailed, "DELETE|DESCRIBE", lambda admin: admin.delete_groups(["a-group"])),
    ]
    with Admin(bob) as admin:
        for kind, operation, call in calls:
            with refused(kind, operation):
                call(admin)
        # What one may not see is left out; other tests have given rights on topics of theirs.
        assert {topic, hidden_topic} & set(admin.list_topics()) == {topic}
    with Admin(carol) as admin:
        assert {topic, hidden_topic}.isdisjoint(admin.list_topics())

"""Producers and consumers over TLS and SASL, while sessions end and connections break: nothing lost, doubled, moved."""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from spark_kafkalite import Consumer, Producer
from spark_kafkalite.client.network import authentication
from spark_kafkalite.errors import KafkaliteError, SaslAuthenticationFailed
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.model_broker import ModelBroker
from spark_kafkalite.testing.model_security import ModelListener

FAST = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 5,
}
CONSUMER = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 20}
USERS = {"alice": "alice-secret"}
LIFETIME_MS = 400

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def listener(authority: trustme.CA) -> ModelListener:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return ModelListener(tls_context=context, users=USERS)


@pytest.fixture
def broker(listener: ModelListener) -> Iterator[ModelBroker]:
    made = ModelBroker({"t": 2}, listener=listener)
    yield made
    made.close()


@pytest.fixture
def settings(broker: ModelBroker, authority: trustme.CA) -> dict[str, object]:
    return {
        **FAST,
        "bootstrap.servers": broker.listen(),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.certificates": authority.cert_pem.bytes().decode(),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }


@pytest.fixture
def short_sessions(listener: ModelListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that end so soon that some do in every test."""
    listener.session_lifetime_ms = LIFETIME_MS
    monkeypatch.setattr(authentication, "_LEAST_PAUSE_S", 0.0)


def read(settings: dict[str, object], partition: int, count: int) -> list[bytes | None]:
    with Consumer({**settings, **CONSUMER}) as consumer:
        consumer.assign([TopicPartition("t", partition)])
        values: list[bytes | None] = []
        while len(values) < count:
            values += [record.value for record in consumer.poll(timeout_ms=20_000)]
        return values


def test_large_and_small_records_go_there_and_back(settings: dict[str, object]) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    source = random.Random(seed)
    values = [source.randbytes(source.choice([0, 1, 100, 16_000, 900_000])) for _ in range(60)]
    with Producer(settings) as producer:
        for value in values:
            producer.send("t", value, partition=0)
    assert read(settings, 0, len(values)) == values


@pytest.mark.usefixtures("short_sessions")
@pytest.mark.parametrize("breaks", [False, True])
def test_sessions_end_under_producers_and_consumers_without_a_trace(
    settings: dict[str, object],
    broker: ModelBroker,
    listener: ModelListener,
    caplog: pytest.LogCaptureFixture,
    breaks: bool,
) -> None:
    """Requests are in flight all the time: who waits for a pause to authenticate again waits for ever."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    source = random.Random(seed)
    slow = threading.Event()

    def answer_last(api_key: int, request: Any) -> None:
        # Answers take a moment, so that several requests are on their way.
        slow.wait(source.random() * 0.004)
        if breaks and source.random() < 0.005:
            raise ConnectionResetError

    broker.answer_last = answer_last
    sent: tuple[list[bytes], list[bytes]] = [], []
    got: tuple[list[bytes | None], list[bytes | None]] = [], []
    ended = threading.Event()

    def consume() -> None:
        with Consumer({**settings, **CONSUMER}) as consumer:
            consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
            while not ended.is_set() or any(len(there) < len(here) for there, here in zip(got, sent, strict=True)):
                for record in consumer.poll(timeout_ms=100):
                    got[record.partition].append(record.value)

    reader = threading.Thread(target=consume)
    with Producer({**settings, "batch.size": 200, "linger.ms": 0}) as producer:
        reader.start()
        until_s = time.monotonic() + 4 * LIFETIME_MS / 1000
        number = 0
        while time.monotonic() < until_s:
            value = b"%06d" % number + bytes(source.choice([0, 0, 150, 20_000]))
            producer.send("t", value, partition=number % 2)
            sent[number % 2].append(value)
            number += 1
            if number % 50 == 0:
                producer.flush()
    ended.set()
    reader.join(60)
    assert got == sent
    # Producer and consumer have three connections each: to the bootstrap address, for short requests, for records.
    assert listener.renewals > 4
    if not breaks:
        assert not listener.closed
        assert broker.opened == 6
        assert not caplog.records


def test_records_fail_at_once_when_the_password_is_rotated_and_go_on_when_it_is_back(
    settings: dict[str, object], broker: ModelBroker, listener: ModelListener
) -> None:
    with Producer(settings) as producer:
        producer.send("t", b"1", partition=0).result(20)
        listener.users = {"alice": "rotated"}
        broker.break_connections()
        begun_s = time.monotonic()
        with pytest.raises(SaslAuthenticationFailed, match="Invalid credentials"):
            producer.send("t", b"2", partition=0).result(60)
        assert time.monotonic() - begun_s < 10
        listener.users = USERS
        for _ in range(100):
            try:
                producer.send("t", b"3", partition=0).result(20)
                break
            except SaslAuthenticationFailed:
                # A try that was made before the password came back.
                continue
        else:
            pytest.fail("the producer does not come back")
    assert read(settings, 0, 2) == [b"1", b"3"]


def test_a_poll_raises_that_the_password_is_rotated_and_later_ones_go_on_when_it_is_back(
    settings: dict[str, object], broker: ModelBroker, listener: ModelListener
) -> None:
    with Producer(settings) as producer, Consumer({**settings, **CONSUMER}) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        producer.send("t", b"1", partition=0).result(20)
        assert [record.value for record in consumer.poll(timeout_ms=20_000)] == [b"1"]
        listener.users = {"alice": "rotated"}
        broker.break_connections()
        with pytest.raises(SaslAuthenticationFailed, match="Invalid credentials"):
            consumer.poll(timeout_ms=20_000)
        listener.users = USERS
        for _ in range(100):
            try:
                producer.send("t", b"2", partition=0).result(20)
                break
            except SaslAuthenticationFailed:
                continue
        got: list[bytes | None] = []
        until_s = time.monotonic() + 20
        while not got and time.monotonic() < until_s:
            try:
                got += [record.value for record in consumer.poll(timeout_ms=1_000)]
            except KafkaliteError as error:
                assert isinstance(error, SaslAuthenticationFailed)
        assert got == [b"2"]


@pytest.mark.parametrize("wrong", ["password", "authority", "name"])
def test_a_first_poll_raises_why_it_is_refused(settings: dict[str, object], wrong: str) -> None:
    if wrong == "password":
        settings["sasl.password"] = "wrong"
    elif wrong == "authority":
        settings["ssl.truststore.certificates"] = trustme.CA().cert_pem.bytes().decode()
    else:
        settings["bootstrap.servers"] = str(settings["bootstrap.servers"]).replace("127.0.0.1", "localhost")
    expected = {"password": r"sasl\.password", "authority": "not trusted", "name": "not for this host"}
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        with pytest.raises(KafkaliteError, match=expected[wrong]) as caught:
            consumer.poll(timeout_ms=20_000)
    assert not caught.value.retriable
    with Producer(settings) as producer, pytest.raises(type(caught.value), match=expected[wrong]):
        producer.send("t", b"x")

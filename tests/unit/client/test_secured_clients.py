"""Producers and consumers over TLS and SASL, while sessions end and connections break: nothing lost, doubled, moved."""

from __future__ import annotations

import contextlib
import random
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from spark_kafkalite import Consumer, Producer
from spark_kafkalite.client.produce.delivery import Delivery
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import KafkaliteError, SaslAuthenticationFailed
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from tests.lab.model_broker import ModelBroker
from tests.lab.model_security import ModelListener
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED

FAST = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 5,
}
CONSUMER = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 20}
USERS = {"alice": "alice-secret"}
# Of a session. Clients renew it between 510 and 570 s, so after a jump of the clock they do, and in time, unless the
# machine stands still for 20 s.
LIFETIME_MS = 600_000
JUMP_S = 580.0
# What clients give up by their clock, they do not give up because of its jumps.
NO_TIMEOUTS = {"request.timeout.ms": 36_000_000, "connections.max.idle.ms": -1, "metadata.max.age.ms": 36_000_000}


class JumpingClock:
    """The system's clock, which a test moves ahead; satisfies ``spark_kafkalite.clock.Clock``."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def jump(self, seconds: float) -> None:
        self._ahead_s += seconds

    def wall_ms(self) -> int:
        return SYSTEM_CLOCK.wall_ms()

    def monotonic_s(self) -> float:
        return SYSTEM_CLOCK.monotonic_s() + self._ahead_s


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


def read(settings: dict[str, object], partition: int, count: int) -> list[bytes | None]:
    with Consumer({**settings, **CONSUMER}) as consumer:
        consumer.assign([TopicPartition("t", partition)])
        values: list[bytes | None] = []
        while len(values) < count:
            values += [record.value for record in consumer.poll(timeout_ms=20_000)]
        return values


def test_large_and_small_records_go_there_and_back(settings: dict[str, object]) -> None:
    source = random.Random(SEED)
    values = [source.randbytes(size) for size in source.sample([0, 1, 100, 16_000, 900_000] * 3, 15)]
    with Producer(settings) as producer:
        for value in values:
            producer.send("t", value, partition=0)
    assert read(settings, 0, len(values)) == values


@pytest.mark.parametrize("breaks", [False, True])
def test_sessions_end_under_producers_and_consumers_without_a_trace(
    settings: dict[str, object],
    broker: ModelBroker,
    listener: ModelListener,
    caplog: pytest.LogCaptureFixture,
    breaks: bool,
) -> None:
    """Requests are in flight at every renewal: a client that waits for a pause would never authenticate again."""
    source = random.Random(SEED)
    clock = listener.clock = JumpingClock()
    listener.session_lifetime_ms = LIFETIME_MS
    settings |= NO_TIMEOUTS
    slow = threading.Event()
    fetches = 0

    def answer_last(api_key: int, request: Any) -> None:
        nonlocal fetches
        fetches += api_key == ApiKey.FETCH
        # Answers take a moment, so that several requests are on their way.
        slow.wait(source.random() * 0.002)
        if breaks and source.random() < 0.01:
            raise ConnectionResetError

    broker.answer_last = answer_last
    sent: tuple[list[bytes], list[bytes]] = [], []
    got: tuple[list[bytes | None], list[bytes | None]] = [], []
    ended = threading.Event()

    def consume() -> None:
        with Consumer({**settings, **CONSUMER}, clock=clock) as consumer:
            consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
            while not ended.is_set() or any(len(there) < len(here) for there, here in zip(got, sent, strict=True)):
                for record in consumer.poll(timeout_ms=100):
                    got[record.partition].append(record.value)

    reader = threading.Thread(target=consume)
    timeouts = {"delivery.timeout.ms": 72_000_000, "max.block.ms": 36_000_000}
    with Producer({**settings, **timeouts, "batch.size": 200, "linger.ms": 0}, clock=clock) as producer:

        def send(number: int) -> Delivery:
            value = b"%06d" % number + bytes(source.choice([0, 0, 150, 20_000]))
            sent[number % 2].append(value)
            return producer.send("t", value, partition=number % 2)

        reader.start()
        number = rounds = 0
        # Producer and consumer renew the session of one connection each. A break ends a session, too.
        while listener.renewals <= 4:
            rounds += 1
            assert rounds <= 50, "sessions are not renewed"
            first = send(number)
            # The session may not end while a request of before the last jump is on its way.
            first.result(PATIENCE_S)
            fetched = fetches
            wait_until(lambda fetched=fetched: fetches > fetched + 5, "fetches with the session of after the jump")
            for _ in range(40):
                number += 1
                send(number)
            number += 1
            clock.jump(JUMP_S)
    ended.set()
    reader.join(PATIENCE_S)
    assert got == sent, f"seed {SEED}"
    # Producer and consumer have three connections each: to the bootstrap address, for short requests, for records.
    if not breaks:
        assert not listener.closed
        assert broker.opened == 6
        assert not caplog.records


def send_until_accepted(producer: Producer, value: bytes) -> None:
    """Send a record until it is acknowledged: a try may have been made before the password came back."""

    def accepted() -> bool:
        with contextlib.suppress(SaslAuthenticationFailed):
            producer.send("t", value, partition=0).result(PATIENCE_S)
            return True
        return False

    wait_until(accepted, "an acknowledged record")


def test_records_fail_at_once_when_the_password_is_rotated_and_go_on_when_it_is_back(
    settings: dict[str, object], broker: ModelBroker, listener: ModelListener
) -> None:
    with Producer(settings) as producer:
        producer.send("t", b"1", partition=0).result(PATIENCE_S)
        listener.users = {"alice": "rotated"}
        broker.break_connections()
        with pytest.raises(SaslAuthenticationFailed, match="Invalid credentials"):
            producer.send("t", b"2", partition=0).result(PATIENCE_S)
        listener.users = USERS
        send_until_accepted(producer, b"3")
    assert read(settings, 0, 2) == [b"1", b"3"]


def test_a_poll_raises_that_the_password_is_rotated_and_later_ones_go_on_when_it_is_back(
    settings: dict[str, object], broker: ModelBroker, listener: ModelListener
) -> None:
    with Producer(settings) as producer, Consumer({**settings, **CONSUMER}) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        producer.send("t", b"1", partition=0).result(PATIENCE_S)
        assert [record.value for record in consumer.poll(timeout_ms=20_000)] == [b"1"]
        listener.users = {"alice": "rotated"}
        broker.break_connections()
        with pytest.raises(SaslAuthenticationFailed, match="Invalid credentials"):
            consumer.poll(timeout_ms=20_000)
        listener.users = USERS
        send_until_accepted(producer, b"2")

        def polled() -> list[bytes | None]:
            with contextlib.suppress(SaslAuthenticationFailed):
                return [record.value for record in consumer.poll(timeout_ms=1_000)]
            return []

        assert wait_until(polled, "a poll with the password that is right again") == [b"2"]


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

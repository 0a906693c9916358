"""Clients at ports where no broker answers as they speak: each call ends soon, and says what to change."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import trustme

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.network import first_contact
from spark_kafkalite.errors import (
    BrokerUnreachable,
    IllegalSaslState,
    KafkaliteError,
    NoBrokerThere,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    UnsupportedSaslMechanism,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.model_broker import ModelBroker
from spark_kafkalite.testing.model_security import ModelListener

pytestmark = pytest.mark.timeout(60)

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
FAST = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 20, "retry.backoff.ms": 10, "retry.backoff.max.ms": 20}


class Port:
    """A port on loopback whose connections are dealt with by a function, in threads."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._serve = serve
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listening.accept()[0]
                self._connections.append(connection)
                thread = threading.Thread(target=self._run, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _run(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        for sock in (self._listening, *self._connections):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10)


OpenPort = Callable[[Callable[[socket.socket], None]], str]


def silent(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def closing(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.close()


def http(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.sendall(HTTP)
    connection.close()


@pytest.fixture
def open_port() -> Iterator[OpenPort]:
    ports: list[Port] = []

    def made(serve: Callable[[socket.socket], None]) -> str:
        ports.append(Port(serve))
        return ports[-1].address

    yield made
    for port in ports:
        port.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after a second instead of eight."""
    monkeypatch.setattr(first_contact, "GIVE_UP_AFTER_S", 1.0)
    monkeypatch.setattr(first_contact, "_LEAST_TRY_S", 0.3)


def by_admin(settings: dict[str, object]) -> None:
    with Admin(settings) as admin:
        admin.list_topics()


def by_producer(settings: dict[str, object]) -> None:
    with Producer(settings) as producer:
        producer.send("t", b"x")


def by_consumer(settings: dict[str, object]) -> None:
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.poll(timeout_ms=30_000)


def by_member(settings: dict[str, object]) -> None:
    with Consumer({**settings, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(timeout_ms=30_000)


def by_pattern(settings: dict[str, object]) -> None:
    with Consumer({**settings, "group.id": "g"}) as consumer:
        consumer.subscribe(pattern="t.*")
        consumer.poll(timeout_ms=30_000)


def by_short_polls(settings: dict[str, object]) -> None:
    with Consumer({**settings, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        while True:
            consumer.poll(timeout_ms=100)


CALLS = [by_admin, by_producer, by_consumer, by_member, by_pattern, by_short_polls]


def refusals(settings: dict[str, object], within_s: float) -> list[KafkaliteError]:
    """The errors that all calls end with, each made at the same time by a client of its own, in that time."""
    ended: dict[str, tuple[BaseException, float]] = {}

    def run(call: Callable[[dict[str, object]], None]) -> None:
        begun_s = time.monotonic()
        try:
            call({**FAST, **settings})
        except BaseException as error:
            ended[call.__name__] = error, time.monotonic() - begun_s

    threads = [threading.Thread(target=run, args=(call,)) for call in CALLS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert len(ended) == len(CALLS)
    errors: list[KafkaliteError] = []
    for name, (error, took_s) in ended.items():
        assert took_s < within_s, name
        assert isinstance(error, KafkaliteError), name
        assert "\n" not in str(error)
        errors.append(error)
    return errors


def assert_no_broker(errors: list[KafkaliteError], text: str) -> None:
    for error in errors:
        assert isinstance(error, NoBrokerThere)
        assert re.search(text, str(error))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("serve", [silent, closing])
@pytest.mark.parametrize(("protocol", "other"), [("PLAINTEXT", "SSL"), ("SSL", "PLAINTEXT")])
def test_what_does_not_answer_is_told_soon(
    open_port: OpenPort, serve: Callable[[socket.socket], None], protocol: str, other: str
) -> None:
    address = open_port(serve)
    errors = refusals({"bootstrap.servers": address, "security.protocol": protocol}, 5)
    assert_no_broker(errors, f"{address}.*security.protocol={other}")


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_http_is_told_at_once(open_port: OpenPort, protocol: str) -> None:
    errors = refusals({"bootstrap.servers": open_port(http), "security.protocol": protocol}, 5)
    assert_no_broker(errors, "HTTP")


def test_a_plaintext_client_at_a_port_with_tls_is_told_at_once(open_port: OpenPort) -> None:
    def serve(connection: socket.socket) -> None:
        # As Java's: an alert, then the end.
        connection.recv(65_536)
        connection.sendall(b"\x15\x03\x03\x00\x02\x02\x50")
        connection.close()

    errors = refusals({"bootstrap.servers": open_port(serve)}, 5)
    assert_no_broker(errors, "it speaks TLS.*set security.protocol=SSL, or SASL_SSL if it asks for credentials")


@pytest.mark.usefixtures("impatient")
def test_a_client_with_tls_at_a_plaintext_port_is_told() -> None:
    broker = ModelBroker({"t": 1})
    errors = refusals({"bootstrap.servers": broker.listen(), "security.protocol": "SSL"}, 5)
    broker.close()
    assert_no_broker(errors, "set security.protocol=PLAINTEXT")


@pytest.mark.usefixtures("impatient")
def test_who_does_not_authenticate_is_told() -> None:
    broker = ModelBroker({"t": 1}, listener=ModelListener(users={"alice": "secret"}))
    errors = refusals({"bootstrap.servers": broker.listen()}, 5)
    broker.close()
    assert_no_broker(errors, "set security.protocol=SASL_PLAINTEXT")


def test_a_certificate_that_is_wanted_is_told_at_once() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    broker = ModelBroker({"t": 1}, listener=ModelListener(tls_context=context))
    settings: dict[str, object] = {
        "bootstrap.servers": broker.listen(),
        "security.protocol": "SSL",
        "ssl.truststore.certificates": authority.cert_pem.bytes().decode(),
    }
    errors = refusals(settings, 5)
    broker.close()
    for error in errors:
        assert isinstance(error, SslHandshakeFailed) and "ssl.keystore.location" in str(error)


@pytest.mark.parametrize("wrong", ["password", "mechanism", "listener"])
def test_what_authentication_ends_with_is_told_at_once(wrong: str) -> None:
    listener = ModelListener(users=None if wrong == "listener" else {"alice": "secret"}, mechanisms=["SCRAM-SHA-256"])
    broker = ModelBroker({"t": 1}, listener=listener)
    settings: dict[str, object] = {
        "bootstrap.servers": broker.listen(),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN" if wrong == "mechanism" else "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "wrong",
    }
    errors = refusals(settings, 5)
    broker.close()
    kinds = {
        "password": (SaslAuthenticationFailed, "sasl.password"),
        "mechanism": (UnsupportedSaslMechanism, "it offers: SCRAM-SHA-256"),
        "listener": (IllegalSaslState, "set security.protocol=PLAINTEXT"),
    }
    kind, text = kinds[wrong]
    for error in errors:
        assert isinstance(error, kind) and text in str(error)


@pytest.mark.usefixtures("impatient")
def test_a_good_address_among_wrong_ones_is_found(open_port: OpenPort) -> None:
    broker = ModelBroker({"t": 1})
    addresses = f"{open_port(silent)},{open_port(http)},{broker.listen()}"
    with Admin({**FAST, "bootstrap.servers": addresses}) as admin:
        assert admin.list_topics() == ["t"]
    broker.close()


@pytest.mark.usefixtures("impatient")
def test_what_refuses_connections_is_waited_for() -> None:
    """Nothing listens yet: that is no wrong door."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with Admin({**FAST, "bootstrap.servers": address}) as admin:
            begun_s = time.monotonic()
            with pytest.raises(BrokerUnreachable):
                admin.list_topics(timeout_ms=2_500)
            assert time.monotonic() - begun_s > 2


def test_all_calls_end_within_ten_seconds_as_they_are(open_port: OpenPort) -> None:
    assert_no_broker(refusals({"bootstrap.servers": open_port(silent)}, 10), "silent")

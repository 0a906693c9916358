"""Clients at ports where no broker answers as they speak: each call ends, and says what to change.

How soon it does is tested with a clock that stands still (``network/test_authentication.py``).
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
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
from tests.lab.model_broker import ModelBroker
from tests.lab.model_security import ModelListener
from tests.patience import PATIENCE_S

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
            thread.join(PATIENCE_S)


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


@pytest.fixture(scope="module")
def trust() -> dict[str, object]:
    """Settings that trust one authority: to load those of the system takes a while."""
    return {"ssl.truststore.certificates": trustme.CA().cert_pem.bytes().decode()}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after each address was tried once. Each try has as much time as it needs."""
    monkeypatch.setattr(first_contact, "GIVE_UP_AFTER_S", 0.0)
    monkeypatch.setattr(first_contact, "_LEAST_TRY_S", PATIENCE_S)


@pytest.fixture
def hasty(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an address hardly any time: enough for one that is silent."""
    monkeypatch.setattr(first_contact, "_LEAST_TRY_S", 0.1)


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


def refusals(settings: dict[str, object]) -> list[KafkaliteError]:
    """Return the errors that all calls end with. Each is made by a client of its own, all at the same time."""
    ended: dict[str, BaseException] = {}

    def run(call: Callable[[dict[str, object]], None]) -> None:
        try:
            call({**FAST, **settings})
        except BaseException as error:
            ended[call.__name__] = error

    threads = [threading.Thread(target=run, args=(call,)) for call in CALLS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended.keys() == {call.__name__ for call in CALLS}
    errors: list[KafkaliteError] = []
    for name, error in ended.items():
        assert isinstance(error, KafkaliteError), name
        assert "\n" not in str(error)
        errors.append(error)
    return errors


def assert_no_broker(errors: list[KafkaliteError], text: str) -> None:
    for error in errors:
        assert isinstance(error, NoBrokerThere)
        assert re.search(text, str(error))


WRONG_PROTOCOLS = pytest.mark.parametrize(("protocol", "other"), [("PLAINTEXT", "SSL"), ("SSL", "PLAINTEXT")])


@pytest.mark.usefixtures("hasty")
@WRONG_PROTOCOLS
def test_a_silent_port_is_an_error_that_names_the_other_protocol(
    open_port: OpenPort, trust: dict[str, object], protocol: str, other: str
) -> None:
    address = open_port(silent)
    errors = refusals({**trust, "bootstrap.servers": address, "security.protocol": protocol})
    assert_no_broker(errors, f"{address}.*security.protocol={other}")


@pytest.mark.usefixtures("impatient")
@WRONG_PROTOCOLS
def test_a_port_that_closes_connections_is_an_error_that_names_the_other_protocol(
    open_port: OpenPort, trust: dict[str, object], protocol: str, other: str
) -> None:
    address = open_port(closing)
    errors = refusals({**trust, "bootstrap.servers": address, "security.protocol": protocol})
    assert_no_broker(errors, f"{address}.*security.protocol={other}")


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_port_that_speaks_http_is_an_error_at_the_first_try(
    open_port: OpenPort, trust: dict[str, object], protocol: str
) -> None:
    errors = refusals({**trust, "bootstrap.servers": open_port(http), "security.protocol": protocol})
    assert_no_broker(errors, "HTTP")


def test_a_plaintext_client_at_a_port_with_tls_fails_at_the_first_try(open_port: OpenPort) -> None:
    def serve(connection: socket.socket) -> None:
        # As Java's: an alert, then the end.
        connection.recv(65_536)
        connection.sendall(b"\x15\x03\x03\x00\x02\x02\x50")
        connection.close()

    errors = refusals({"bootstrap.servers": open_port(serve)})
    assert_no_broker(errors, "it speaks TLS.*set security.protocol=SSL, or SASL_SSL if it asks for credentials")


@pytest.mark.usefixtures("impatient")
def test_a_client_with_tls_at_a_plaintext_port_fails(trust: dict[str, object]) -> None:
    broker = ModelBroker({"t": 1})
    errors = refusals({**trust, "bootstrap.servers": broker.listen(), "security.protocol": "SSL"})
    broker.close()
    assert_no_broker(errors, "set security.protocol=PLAINTEXT")


@pytest.mark.usefixtures("impatient")
def test_a_client_that_does_not_authenticate_is_an_error_that_names_sasl() -> None:
    broker = ModelBroker({"t": 1}, listener=ModelListener(users={"alice": "secret"}))
    errors = refusals({"bootstrap.servers": broker.listen()})
    broker.close()
    assert_no_broker(errors, "set security.protocol=SASL_PLAINTEXT")


def test_a_certificate_that_the_broker_asks_for_is_named() -> None:
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
    errors = refusals(settings)
    broker.close()
    for error in errors:
        assert isinstance(error, SslHandshakeFailed) and "ssl.keystore.location" in str(error)


@pytest.mark.parametrize("wrong", ["password", "mechanism", "listener"])
def test_a_refusal_to_authenticate_is_an_error_that_names_the_setting(wrong: str) -> None:
    listener = ModelListener(users=None if wrong == "listener" else {"alice": "secret"}, mechanisms=["SCRAM-SHA-256"])
    broker = ModelBroker({"t": 1}, listener=listener)
    settings: dict[str, object] = {
        "bootstrap.servers": broker.listen(),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN" if wrong == "mechanism" else "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "wrong",
    }
    errors = refusals(settings)
    broker.close()
    kinds = {
        "password": (SaslAuthenticationFailed, "sasl.password"),
        "mechanism": (UnsupportedSaslMechanism, "it offers: SCRAM-SHA-256"),
        "listener": (IllegalSaslState, "set security.protocol=PLAINTEXT"),
    }
    kind, text = kinds[wrong]
    for error in errors:
        assert isinstance(error, kind) and text in str(error)


def test_a_good_address_among_wrong_ones_is_found(open_port: OpenPort) -> None:
    broker = ModelBroker({"t": 1})
    addresses = f"{open_port(closing)},{open_port(http)},{broker.listen()}"
    with Admin({**FAST, "bootstrap.servers": addresses}) as admin:
        assert admin.list_topics() == ["t"]
    broker.close()


@pytest.mark.usefixtures("impatient")
def test_a_port_that_refuses_connections_is_waited_for() -> None:
    """Nothing listens yet: that is no wrong door."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with Admin({**FAST, "bootstrap.servers": address}) as admin:
            with pytest.raises(BrokerUnreachable, match="no broker answers; tried") as caught:
                admin.list_topics(timeout_ms=100)
            assert not isinstance(caught.value, NoBrokerThere)

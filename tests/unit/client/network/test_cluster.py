"""A client that is closed at any moment opens nothing more, and what cannot be connected to is an error of ours."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.client.config import ClientConfig, admin_config
from spark_kafkalite.client.network import first_contact
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import (
    BrokerUnreachable,
    ClosedError,
    IllegalSaslState,
    KafkaliteError,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    UnsupportedSaslMechanism,
)
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.metadata import MetadataRequest
from tests.lab.model_broker import NODE_ID, ModelBroker
from tests.patience import PATIENCE_S


@pytest.fixture
def silent_broker() -> Iterator[socket.socket]:
    """What takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


class ClosingClock:
    """Closes a client when it is looked at for the last time of some; satisfies ``spark_kafkalite.clock.Clock``."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.client: ClusterClient | None = None

    def wall_ms(self) -> int:
        return SYSTEM_CLOCK.wall_ms()

    def monotonic_s(self) -> float:
        if self.client is not None:
            self.looks -= 1
            if self.looks == 0:
                self.client.close()
        return SYSTEM_CLOCK.monotonic_s()


@pytest.mark.parametrize("known", [True, False])
def test_a_client_that_is_closed_before_it_connects_does_not_connect(known: bool) -> None:
    broker = ModelBroker({"t": 1})
    client = ClusterClient(ClientConfig(("model:1",)), SYSTEM_CLOCK, broker.open)
    if known:
        client.refresh(["t"], Deadline.after_ms(10_000))
    client.close()
    opened, deadline = broker.opened, Deadline.after_ms(200)
    with pytest.raises(ClosedError):
        if known:
            client.request_to(NODE_ID, ApiKey.METADATA, MetadataRequest(), deadline)
        else:
            client.request_any(ApiKey.METADATA, MetadataRequest(), deadline)
    assert broker.opened == opened
    broker.close()


def test_a_client_that_is_closed_while_it_chooses_a_broker_opens_no_connection(silent_broker: socket.socket) -> None:
    host, port = silent_broker.getsockname()
    for looks in range(1, 8):
        clock = ClosingClock(looks)
        opened_when_closed: list[int] = []

        def open_connection(
            *way: Any, clock: ClosingClock = clock, opened: list[int] = opened_when_closed
        ) -> BrokerConnection:
            if clock.looks <= 0:
                opened.append(clock.looks)
            return BrokerConnection.open(*way)

        client = ClusterClient(ClientConfig((f"{host}:{port}",)), clock, open_connection)
        deadline = Deadline.after_ms(200, clock)
        clock.client = client
        with pytest.raises(KafkaliteError):
            client.request_any(ApiKey.METADATA, MetadataRequest(), deadline)
        assert clock.looks <= 0
        assert not opened_when_closed, looks


def test_a_process_without_descriptors_cannot_reach_a_broker(
    silent_broker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = silent_broker.getsockname()

    def no_socket(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", no_socket)
        with pytest.raises(BrokerUnreachable, match=f"{host}:{port}: too many open files"):
            BrokerConnection.open(host, port, ClientConfig((f"{host}:{port}",)), Deadline.after_ms(200))


def test_a_host_name_that_can_be_none_cannot_be_resolved() -> None:
    with pytest.raises(BrokerUnreachable, match="cannot be resolved"):
        BrokerConnection.open("a" * 64 + ".example", 9092, ClientConfig(("b:1",)), Deadline.after_ms(200))


@pytest.mark.parametrize("refusal", [SslHandshakeFailed, UnsupportedSaslMechanism, IllegalSaslState])
def test_a_listener_that_refuses_us_leaves_the_others_to_be_asked(refusal: type[KafkaliteError]) -> None:
    broker = ModelBroker({"t": 1})
    asked: list[str] = []
    refusing = {"first", "second"}

    def open_connection(host: str, port: int, *how: Any) -> BrokerConnection:
        asked.append(host)
        if host in refusing:
            raise refusal(f"says {host}")
        return broker.open(host, port, *how)

    client = ClusterClient(ClientConfig(("first:1", "second:1", "third:1")), SYSTEM_CLOCK, open_connection)
    assert client.request_any(ApiKey.METADATA, MetadataRequest(), Deadline.after_ms(10_000)).brokers
    assert asked == ["first", "second", "third"]
    client.close()
    refusing.add("third")
    client = ClusterClient(ClientConfig(("first:1", "second:1", "third:1")), SYSTEM_CLOCK, open_connection)
    with pytest.raises(refusal, match="says first"):
        client.request_any(ApiKey.METADATA, MetadataRequest(), Deadline.after_ms(10_000))
    assert asked[3:] == ["first", "second", "third"], "each once"
    client.close()
    broker.close()


def test_refused_credentials_are_shown_to_no_other_broker() -> None:
    asked: list[str] = []

    def open_connection(host: str, port: int, *how: Any) -> BrokerConnection:
        asked.append(host)
        raise SaslAuthenticationFailed("no")

    client = ClusterClient(ClientConfig(("first:1", "second:1")), SYSTEM_CLOCK, open_connection)
    with pytest.raises(SaslAuthenticationFailed):
        client.request_any(ApiKey.METADATA, MetadataRequest(), Deadline.after_ms(10_000))
    assert asked == ["first"]
    client.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_the_end_of_a_client_ends_connections_that_a_silent_broker_keeps_half_open(
    silent_broker: socket.socket, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    # So nothing else ends them within the test.
    monkeypatch.setattr(first_contact, "GIVE_UP_AFTER_S", 3_600.0)
    never = {"socket.connection.setup.timeout.ms": 3_600_000, "socket.connection.setup.timeout.max.ms": 3_600_000}
    silent_broker.setblocking(True)
    host, port = silent_broker.getsockname()
    config = admin_config({"bootstrap.servers": f"{host}:{port}", "security.protocol": protocol, **never}, {})
    client = ClusterClient(config)
    raised: list[KafkaliteError] = []

    def ask() -> None:
        try:
            client.request_any(ApiKey.METADATA, MetadataRequest(), Deadline.after_ms(3_600_000))
        except KafkaliteError as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    accepted, _ = silent_broker.accept()
    with accepted:
        # Something was said, so that the client waits for an answer now.
        assert accepted.recv(1)
        client.close()
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
    assert isinstance(raised[0], ClosedError)

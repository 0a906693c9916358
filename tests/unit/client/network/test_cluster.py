"""A client that is closed at any moment opens nothing more, and what cannot be connected to is an error of ours."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.metadata import ClusterSnapshot, Node
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import BrokerUnreachable, ClosedError, KafkaliteError
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.metadata import MetadataRequest


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


def connections_to(listening: socket.socket) -> int:
    count = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


@pytest.mark.parametrize("known", [True, False])
def test_a_client_that_is_closed_before_it_connects_does_not_connect(silent_broker: socket.socket, known: bool) -> None:
    host, port = silent_broker.getsockname()
    client = ClusterClient(ClientConfig((f"{host}:{port}",)))
    client._snapshot = ClusterSnapshot(nodes={1: Node(1, host, port)})
    client.close()
    deadline = Deadline.after_ms(200)
    with pytest.raises(ClosedError):
        if known:
            client.request_to(1, ApiKey.METADATA, MetadataRequest(), deadline)
        else:
            client.request_any(ApiKey.METADATA, MetadataRequest(), deadline)
    assert connections_to(silent_broker) == 0


def test_a_client_that_is_closed_while_it_chooses_a_broker_leaves_no_connection(silent_broker: socket.socket) -> None:
    host, port = silent_broker.getsockname()
    for looks in range(1, 8):
        clock = ClosingClock(looks)
        client = ClusterClient(ClientConfig((f"{host}:{port}",)), clock)
        deadline = Deadline.after_ms(200, clock)
        clock.client = client
        with pytest.raises(KafkaliteError):
            client.request_any(ApiKey.METADATA, MetadataRequest(), deadline)
        assert clock.looks <= 0
        assert not client._pool, looks


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

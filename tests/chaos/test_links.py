"""The forwarders do to connections what tests ask for, and to nobody else's."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.forwarder import source_of
from tests.chaos.links import Door, Network
from tests.patience import PATIENCE_S

_ME, _OTHER = 1, 2


def _request_of(broker: int) -> bytes:
    """Return how the first request of a broker begins."""
    client_id = f"broker-{broker}".encode()
    return struct.pack(">ihhih", 1000, 18, 3, 1, len(client_id)) + client_id


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.request.sendall(data)


@pytest.fixture
def echo_port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as running:
        yield running


@pytest.fixture
def door(network: Network, echo_port: int) -> Door:
    return network.open_door(echo_port)


@contextlib.contextmanager
def connected(door: Door, broker: int = _ME) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as connection:
        connection.sendall(_request_of(broker))
        assert connection.recv(100) == _request_of(broker)
        yield connection


def hears(connection: socket.socket) -> bytes:
    """Return what comes."""
    connection.settimeout(PATIENCE_S)
    return connection.recv(1 << 20)


def hears_nothing(connection: socket.socket, network: Network, echo_port: int) -> bool:
    """Whether nothing has come when what was sent later elsewhere, by the same network to the same server, is back."""
    for _ in range(5):
        with connected(network.open_door(echo_port)):
            pass
    connection.setblocking(False)
    try:
        connection.recv(1 << 20)
    except BlockingIOError:
        return True
    return False


def test_held_data_comes_when_it_is_let_go(network: Network, door: Door, echo_port: int) -> None:
    with connected(door) as connection:
        network.hold([door.link(_ME)])
        connection.sendall(b"one")
        assert hears_nothing(connection, network, echo_port)
        network.heal()
        assert hears(connection) == b"one"


def test_one_direction_is_held(network: Network, door: Door, echo_port: int) -> None:
    with connected(door) as connection:
        network.change([door.link(_ME).back], held=True)
        connection.sendall(b"one")
        assert hears_nothing(connection, network, echo_port)
        # The question got through: only the answer is held, and comes although questions are held now.
        network.change([door.link(_ME).there], held=True)
        network.change([door.link(_ME).back], held=False)
        assert hears(connection) == b"one"
        connection.sendall(b"two")
        assert hears_nothing(connection, network, echo_port)


def test_a_new_connection_is_held_too(network: Network, door: Door, echo_port: int) -> None:
    network.hold([door.link(_ME)])
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as connection:
        connection.sendall(_request_of(_ME))
        assert hears_nothing(connection, network, echo_port)
        network.heal()
        assert hears(connection) == _request_of(_ME)


def test_data_is_delayed_and_stays_in_order(network: Network, door: Door) -> None:
    with connected(door) as connection:
        network.change([door.link(_ME).there], delay_s=0.2)
        began = time.monotonic()
        connection.sendall(b"one")
        time.sleep(0.05)
        connection.sendall(b"two")
        found = b""
        while len(found) < 6:
            found += hears(connection)
        assert found == b"onetwo"
        assert time.monotonic() - began >= 0.2


def test_a_slow_line_takes_its_time(network: Network, door: Door) -> None:
    with connected(door) as connection:
        network.change([door.link(_ME).there], bytes_per_s=100_000)
        began = time.monotonic()
        connection.sendall(bytes(50_000))
        received = 0
        while received < 50_000:
            received += len(hears(connection))
        assert time.monotonic() - began >= 0.5


def test_a_piece_is_damaged_behind_its_mark(network: Network, door: Door) -> None:
    with connected(door) as connection:
        network.change([door.link(_ME).there], mark="a-", damages=1)
        for sent, found in ((b"b-1", b"b-1"), (b"a-1", b"a-0"), (b"a-1", b"a-1")):
            connection.sendall(sent)
            assert hears(connection) == found


def test_a_reset_ends_connections_and_no_later_ones(door: Door) -> None:
    with connected(door) as connection:
        door.reset(_ME)
        with pytest.raises(ConnectionResetError):
            hears(connection)
    with connected(door):
        pass


def test_a_cut_takes_no_connection_until_it_heals(network: Network, door: Door) -> None:
    with connected(door) as connection:
        door.cut(_ME)
        with pytest.raises(ConnectionResetError):
            hears(connection)
    with pytest.raises(ConnectionError), connected(door):
        pass
    network.heal()
    with connected(door):
        pass


def test_others_are_left_alone(network: Network, door: Door, echo_port: int) -> None:
    with connected(door, _ME) as mine, connected(door, _OTHER) as other:
        network.hold([door.link(_OTHER)])
        mine.sendall(b"one")
        assert hears(mine) == b"one"
        other.sendall(b"one")
        network.hold([door.link(_ME)])
        network.change([door.link(_OTHER).there, door.link(_OTHER).back], held=False)
        assert hears(other) == b"one"
        mine.sendall(b"two")
        assert hears_nothing(mine, network, echo_port)


def test_a_door_for_one_source_asks_nobody(network: Network, echo_port: int) -> None:
    door = network.open_door(echo_port, _ME)
    door.cut(_ME)
    with pytest.raises(ConnectionError), connected(door, _OTHER):
        pass


@pytest.mark.parametrize(
    "first, source",
    [
        (_request_of(17), 17),
        (_request_of(17)[:-1], 0),
        (_request_of(17).replace(b"broker", b"client"), 0),
        (b"", 0),
        (bytes(14), 0),
        (struct.pack(">ihhih", 1000, 18, 3, 1, -1) + b"broker-1", 0),
    ],
)
def test_a_broker_is_known_by_its_client_id(first: bytes, source: int) -> None:
    assert source_of(first) == source


def test_nobody_behind_the_door(network: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectionError), connected(network.open_door(port)):
        pass

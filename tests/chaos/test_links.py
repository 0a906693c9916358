"""The forwarders do to connections what tests ask for, and to nobody else's."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.chaos.links import Door, Network, inode_in_table, inode_of
from tests.patience import PATIENCE_S

_ME, _OTHER = 1, 2
# Says what it hears from the port that it is given, line by line, and sends on what it is told.
_OTHER_CLIENT = """
import socket, sys
connection = None
for line in sys.stdin.buffer:
    connection = connection or socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.sendall(line)
    sys.stdout.buffer.write(connection.recv(100))
    sys.stdout.flush()
"""


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
    with Network(lambda: {_ME: os.getpid()}) as running:
        yield running


@pytest.fixture
def door(network: Network, echo_port: int) -> Door:
    return network.open_door(echo_port)


@contextlib.contextmanager
def connected(door: Door) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"
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
        network.do(lambda: setattr(door.link(_ME).back, "held", True))
        connection.sendall(b"one")
        assert hears_nothing(connection, network, echo_port)
        # The question got through: only the answer is held, and comes although questions are held now.
        network.do(lambda: (door.link(_ME).back.heal(), setattr(door.link(_ME).there, "held", True)))
        assert hears(connection) == b"one"
        connection.sendall(b"two")
        assert hears_nothing(connection, network, echo_port)


def test_a_new_connection_is_held_too(network: Network, door: Door, echo_port: int) -> None:
    network.hold([door.link(_ME)])
    with socket.create_connection(("127.0.0.1", door.port), PATIENCE_S) as connection:
        connection.sendall(b"one")
        assert hears_nothing(connection, network, echo_port)
        network.heal()
        assert hears(connection) == b"one"


def test_data_is_delayed_and_stays_in_order(network: Network, door: Door) -> None:
    with connected(door) as connection:
        network.do(lambda: setattr(door.link(_ME).there, "delay_s", 0.2))
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
        network.do(lambda: setattr(door.link(_ME).there, "bytes_per_s", 100_000))
        began = time.monotonic()
        connection.sendall(bytes(50_000))
        received = 0
        while received < 50_000:
            received += len(hears(connection))
        assert time.monotonic() - began >= 0.5


def test_a_piece_is_damaged_behind_its_mark(network: Network, door: Door) -> None:
    with connected(door) as connection:
        way = door.link(_ME).there
        network.do(lambda: (setattr(way, "mark", b"a-"), setattr(way, "damages", 1)))
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


def test_others_are_left_alone(echo_port: int) -> None:
    pids = {_ME: os.getpid()}
    with Network(lambda: pids) as network:
        door = network.open_door(echo_port)
        command = [sys.executable, "-c", _OTHER_CLIENT, str(door.port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdin is not None and other.stdout is not None
            pids[_OTHER] = other.pid
            other.stdin.write(b"zero\n")
            other.stdin.flush()
            assert other.stdout.readline() == b"zero\n"
            with connected(door) as connection:
                network.hold([door.link(_OTHER)])
                connection.sendall(b"one")
                assert hears(connection) == b"one"
                other.stdin.write(b"one\n")
                other.stdin.flush()
                network.hold([door.link(_ME)])
                network.do(door.link(_OTHER).heal)
                assert other.stdout.readline() == b"one\n"
                connection.sendall(b"two")
                assert hears_nothing(connection, network, echo_port)
            other.stdin.close()


@pytest.mark.parametrize("find", [inode_of, inode_in_table])
@pytest.mark.parametrize("family, host", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")])
def test_the_socket_at_the_other_end_is_found(
    find: Callable[[int, int], int | None], family: socket.AddressFamily, host: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as here:
        port = server.getsockname()[1]
        here.connect((host, port))
        assert find(here.getsockname()[1], port) == os.fstat(here.fileno()).st_ino
        assert find(1, port) is None


def test_nobody_behind_the_door(network: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectionError), connected(network.open_door(port)):
        pass

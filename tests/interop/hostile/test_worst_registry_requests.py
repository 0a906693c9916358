"""The worst that one client, or a crowd, can ask of a broker's registry port: it is answered, in bounded memory.

The soak bounds the longest turn of the loops, too, in processor time of their threads: what else the machine does is
not counted.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite.registry.served.jute import (
    write_buffer,
    write_int,
    write_long,
    write_multi_header,
    write_string,
    write_strings,
)
from spark_kafkalite.wire.frame import FrameBuffer, framed
from tests import processor
from tests.interop.support.metered_broker import MeteredBroker
from tests.patience import PATIENCE_S

LONGEST_MS = 100
# docs/registry.md names it.
MOST_BYTES = 384 * 1024 * 1024
MEBIBYTE = 1024 * 1024

CREATE, DELETE, EXISTS, GET, SET, CHILDREN, MULTI, MULTI_READ = 1, 2, 3, 4, 5, 8, 14, 22
SET_WATCHES, COUNT_BELOW, ADD_WATCH = 101, 104, 106
OPEN_ACL = write_int(1) + write_int(31) + write_string("world") + write_string("anyone")
HELLO = write_int(0) + write_long(0) + write_int(60_000) + write_long(0) + write_buffer(bytes(16)) + b"\0"
MANY = [f"/many/child-{number:06d}" for number in range(30_000)]


def request(kind: int, body: bytes, xid: int = 1) -> bytes:
    return framed(struct.pack("!ii", xid, kind) + body)


def create(path: str, data: bytes = b"") -> bytes:
    return write_string(path) + write_buffer(data) + OPEN_ACL + write_int(0)


def change(path: str, data: bytes) -> bytes:
    return write_string(path) + write_buffer(data) + write_int(-1)


def multi(kind: int, bodies: list[bytes]) -> bytes:
    steps = b"".join(write_multi_header(kind, False, -1) + body for body in bodies)
    return steps + write_multi_header(-1, True, -1)


class Peer:
    """One connection with a session, as ready-made bytes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._received = FrameBuffer(2**31 - 1)
        self.socket.sendall(framed(HELLO))
        self.receive()

    def receive(self) -> bytes:
        while (frame := self._received.next_frame()) is None:
            piece = self.socket.recv(MEBIBYTE)
            if not piece:
                raise ConnectionError("closed by the registry")
            self._received.feed(piece)
        return frame

    def call(self, kind: int, body: bytes, xid: int = 1) -> int:
        """Return the error code of the answer."""
        self.socket.sendall(request(kind, body, xid))
        while True:
            answered, _, code = struct.unpack_from("!iqi", self.receive())
            if answered == xid:
                return int(code)

    def pipeline(self, count: int, frame: bytes) -> None:
        """Send a request over and over, and read all answers meanwhile."""
        sender = threading.Thread(target=self.socket.sendall, args=(frame * count,), daemon=True)
        sender.start()
        for _ in range(count):
            self.receive()
        sender.join()

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    settings = {"registry.listener": "127.0.0.1:0"}
    with MeteredBroker(tmp_path_factory.mktemp("port") / "data", overrides=settings) as running:
        peer = Peer(running.registry_connect)
        assert peer.call(CREATE, create("/many")) == 0
        for first in range(0, len(MANY), 1000):
            assert peer.call(MULTI, multi(CREATE, [create(path) for path in MANY[first : first + 1000]])) == 0
        assert peer.call(CREATE, create("/large", bytes(1_000_000))) == 0
        peer.close()
        yield running


WORST: dict[str, Callable[[Peer], object]] = {
    "a multi of 1,000 writes of a kilobyte": lambda peer: peer.call(
        MULTI, multi(SET, [change(path, bytes(900)) for path in MANY[:1000]])
    ),
    "a multi of too many operations": lambda peer: peer.call(
        MULTI, multi(DELETE, [write_string("/x") + write_int(-1)] * 50_000)
    ),
    "the children of a large node, twenty times": lambda peer: peer.pipeline(
        20, request(CHILDREN, write_string("/many") + b"\0")
    ),
    "a large node, three hundred times": lambda peer: peer.pipeline(300, request(GET, write_string("/large") + b"\0")),
    "a large node a thousand times in one multi": lambda peer: peer.call(
        MULTI_READ, multi(GET, [write_string("/large") + b"\0"] * 1000)
    ),
    "as many watches as fit": lambda peer: peer.call(
        SET_WATCHES, write_long(1 << 60) + write_strings(MANY) + write_strings([]) * 2, -8
    ),
    "as many paths as fit": lambda peer: peer.call(
        SET_WATCHES, write_long(0) + write_strings([""] * 270_000) + write_strings([]) * 2, -8
    ),
    "a deep path": lambda peer: peer.call(EXISTS, write_string("/" + "/".join("a" * 500_000)) + b"\0"),
    "a long access control list": lambda peer: peer.call(
        CREATE,
        write_string("/listed")
        + write_buffer(b"")
        + write_int(80_000)
        + (write_int(31) + write_string("") * 2) * 80_000
        + write_int(0),
    ),
    "the number of all nodes, fifty times": lambda peer: peer.pipeline(50, request(COUNT_BELOW, write_string("/"))),
    "fifty thousand pings": lambda peer: peer.pipeline(50_000, request(11, b"", -2)),
    "twenty thousand small reads": lambda peer: peer.pipeline(20_000, request(GET, write_string("/many") + b"\0")),
}


@contextlib.contextmanager
def peers(broker: MeteredBroker) -> Iterator[Callable[[], Peer]]:
    """Yield what opens a connection; all of them are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(Peer(broker.registry_connect)))


def play_worst(broker: MeteredBroker, name: str) -> None:
    with peers(broker) as connect:
        WORST[name](connect())


def play_events(broker: MeteredBroker) -> None:
    """Have a hundred clients watch what one write changes a thousand times, and read all events."""
    with peers(broker) as connect:
        watchers = [connect() for _ in range(100)]
        for watcher in watchers:
            assert watcher.call(ADD_WATCH, write_string("/many") + write_int(1)) == 0
        assert connect().call(MULTI, multi(SET, [change(path, b"new") for path in MANY[:1000]])) == 0
        for watcher in watchers:
            # In the order of the operations, and none is lost.
            seen = [watcher.receive()[28:].decode() for _ in range(1000)]
            assert seen == MANY[:1000]


def play_crowd_that_reads_nothing(broker: MeteredBroker) -> None:
    with peers(broker) as connect:
        crowd = [connect() for _ in range(60)]
        for peer in crowd:
            peer.socket.sendall(request(GET, write_string("/large") + b"\0") * 100)
        # Answered once those that read nothing have been closed.
        assert connect().call(GET, write_string("/large") + b"\0") == 0


@pytest.mark.parametrize("name", WORST)
def test_one_client_takes_bounded_memory(broker: MeteredBroker, name: str) -> None:
    assert_bounded(broker, lambda: play_worst(broker, name), name)


def test_thousands_of_events_of_one_write_all_arrive(broker: MeteredBroker) -> None:
    assert_bounded(broker, lambda: play_events(broker), "100,000 events")


def test_a_crowd_that_reads_nothing_neither_takes_all_memory_nor_stops_others(broker: MeteredBroker) -> None:
    assert_bounded(broker, lambda: play_crowd_that_reads_nothing(broker), "60 clients that read nothing")


@pytest.mark.soak
@pytest.mark.parametrize("name", WORST)
def test_one_client_holds_no_loop_for_long(broker: MeteredBroker, name: str) -> None:
    assert broker.least_longest_ms(lambda: play_worst(broker, name)) < LONGEST_MS * processor.slowness()


@pytest.mark.soak
@pytest.mark.parametrize("play", [play_events, play_crowd_that_reads_nothing])
def test_a_crowd_holds_no_loop_for_long(broker: MeteredBroker, play: Callable[[MeteredBroker], None]) -> None:
    assert broker.least_longest_ms(lambda: play(broker)) < LONGEST_MS * processor.slowness()


def assert_bounded(broker: MeteredBroker, play: Callable[[], None], what: str) -> None:
    before = broker.read()
    play()
    readings = broker.read()
    more_bytes = readings.peak_bytes - before.resident_bytes
    print(
        f"{what}: longest turn {readings.longest_ms:.0f} ms ({readings.longest_wall_ms:.0f} ms by the clock), memory "
        f"{more_bytes / MEBIBYTE:.0f} MiB more"
    )
    assert more_bytes < MOST_BYTES

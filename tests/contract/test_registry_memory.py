"""What the registry holds of requests is what it counts of them, and that is bounded; by its own count and Python's.

The registry is in this process, so nothing depends on when an allocator gives memory back.
"""

from __future__ import annotations

import contextlib
import gc
import struct
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_kafkalite.registry.served import server as server_module
from spark_kafkalite.registry.served.jute import write_buffer, write_int, write_string
from spark_kafkalite.registry.served.server import TreeServer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.wire.frame import framed
from tests.contract.protocol_client import ProtocolClient
from tests.contract.test_tree_protocol import CREATE, EXISTS, SET, create
from tests.patience import PATIENCE_S, wait_until

MEBIBYTE = 1024 * 1024
BAD_VERSION, NO_NODE = -103, -101


class Served:
    """A served registry whose writer thread can be held up, so that no request is run."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.registry = stack.enter_context(EmbeddedRegistry(directory))
        self.server = TreeServer(self.registry)
        self._stack = stack
        self.address = f"127.0.0.1:{self.server.start('127.0.0.1', 0)}"
        stack.callback(self.server.close)
        self._go_on = threading.Event()
        # Also when the test has failed: the writer thread must end.
        stack.callback(self._go_on.set)

    def client(self) -> ProtocolClient:
        return self._stack.enter_context(ProtocolClient(self.address, timeout_ms=60_000))

    def hold_up(self) -> None:
        holding: threading.Event = threading.Event()

        def hold() -> None:
            holding.set()
            self._go_on.wait(PATIENCE_S)

        self.registry.submit(hold, Future())
        assert holding.wait(PATIENCE_S)

    def go_on(self) -> None:
        self._go_on.set()

    def of_open_connections(self) -> list[int]:
        return [connection.buffered_bytes for connection in self.server._connections.copy()]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with contextlib.ExitStack() as stack:
        yield Served(tmp_path / "registry", stack)


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Have Python count what is allocated, and collect no garbage meanwhile."""
    gc.collect()
    gc.disable()
    tracemalloc.start(1)
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def set_frame(path: str, data: bytes, version: int) -> bytes:
    return struct.pack("!ii", 1, SET) + write_string(path) + write_buffer(data) + write_int(version)


def test_a_refused_request_goes_without_the_garbage_collector(served: Served) -> None:
    client = served.client()
    assert client.ask(CREATE, create("/node")).error == 0
    with traced():
        for _ in range(20):
            refused = client.ask(SET, write_string("/node") + write_buffer(bytes(200_000)) + write_int(7))
            assert refused.error == BAD_VERSION
            assert client.ask(EXISTS, write_string("/" + "n" * 200_000) + b"\0").error == NO_NODE
        # 8 MB, and as much again of what was read of them.
        assert tracemalloc.get_traced_memory()[0] < 2 * MEBIBYTE
    assert served.server.request_bytes == 0


@pytest.mark.parametrize("leaving", [False, True], ids=["they stay", "they leave"])
def test_a_hundred_senders_have_the_registry_hold_no_more_than_its_bound(
    served: Served, leaving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty requests of each, and most of another, wait for a registry that runs none; an eighth of all sizes."""
    bound = 8 * MEBIBYTE
    monkeypatch.setattr(server_module, "MAX_BUFFERED_BYTES", bound)
    crowd = [served.client() for _ in range(100)]
    good = served.client()
    assert good.ask(CREATE, create("/node")).error == 0
    frames = framed(set_frame("/node", bytes(25_000), 7)) * 20 + struct.pack("!i", 125_000) + bytes(112_000)
    in_all = []
    with traced():
        served.hold_up()
        good.send(EXISTS, write_string("/node") + b"\0")
        for peer in crowd:
            with contextlib.suppress(OSError):
                peer.socket.sendall(frames)
            if leaving:
                peer.close()
            in_all.append((served.server.request_bytes, tracemalloc.get_traced_memory()[0]))
        wait_until(
            lambda: all(held > 612_000 or held < 1_000 for held in served.of_open_connections()),
            lambda: f"everything is read that is read: {served.of_open_connections()}",
        )
        in_all.append((served.server.request_bytes, tracemalloc.get_traced_memory()[0]))
    # What has just come is counted before it is judged: one read of a socket over.
    assert max(counted for counted, _ in in_all) < bound + MEBIBYTE
    assert max(held for _, held in in_all) < 2 * bound
    # Only those who hold the most pay for it, and what is counted goes with them.
    served.go_on()
    assert good.receive().error == 0
    assert good.ask(EXISTS, write_string("/node") + b"\0").error == 0
    for peer in crowd:
        peer.close()
    wait_until(lambda: served.server.request_bytes == 0, lambda: f"{served.server.request_bytes} bytes of requests")


def test_the_many_small_requests_of_a_crowd_are_counted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 kB on the wire, and 5 MB of objects, that each client sends at once, before any of it is counted."""
    monkeypatch.setattr(server_module, "MAX_BUFFERED_BYTES", 4 * MEBIBYTE)
    crowd = [served.client() for _ in range(10)]
    served.hold_up()
    small = framed(struct.pack("!ii", 1, EXISTS) + write_string("/node") + b"\0") * 1000
    for peer in crowd:
        with contextlib.suppress(OSError):
            peer.socket.sendall(small)
    wait_until(lambda: len(served.of_open_connections()) < len(crowd), "connections beyond the bound are closed")
    served.go_on()
    wait_until(lambda: served.server.request_bytes == 0, lambda: f"{served.server.request_bytes} bytes of requests")


def test_requests_dropped_for_their_size_do_not_run_behind_a_gap(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran of a connection that was closed for its requests is the first of them, none after one that did not."""
    monkeypatch.setattr(server_module, "MAX_BUFFERED_BYTES", 8 * MEBIBYTE)
    good = served.client()
    assert good.ask(CREATE, create("/counter")).error == 0
    peers = [served.client() for _ in range(20)]
    served.hold_up()
    for number, peer in enumerate(peers):
        path = f"/{number}"
        body = b"".join(framed(struct.pack("!ii", n, CREATE) + create(f"{path}.{n}", bytes(50_000))) for n in range(20))
        with contextlib.suppress(OSError):
            peer.socket.sendall(body)
    wait_until(lambda: len(served.of_open_connections()) < 20, "connections beyond the bound are closed")
    served.go_on()
    wait_until(lambda: served.server.request_bytes == 0, lambda: f"{served.server.request_bytes} bytes of requests")
    there = {path for path in served.registry.tree.nodes if "." in path}
    counts = []
    for number in range(20):
        made = sum(path.startswith(f"/{number}.") for path in there)
        assert {f"/{number}.{n}" for n in range(made)} == {path for path in there if path.startswith(f"/{number}.")}
        counts.append(made)
    assert 0 in counts and 20 in counts, counts


def test_a_request_is_not_kept_until_the_next_one_comes(tmp_path: Path) -> None:
    class Large:
        """What a request holds."""

    with EmbeddedRegistry(tmp_path) as registry:
        large, done = Large(), Future[None]()
        kept = weakref.ref(large)
        registry.submit(lambda large=large: None, done)
        del large
        done.result(PATIENCE_S)
        wait_until(lambda: kept() is None, "the request to be forgotten")

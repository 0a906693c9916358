"""What arrives on the registry's socket neither crashes, hangs nor bloats it, and a well-behaved client is served.

The registry is a process of its own, whose memory is measured. The soak sends twenty times as many mutations. What it
holds of requests: test_registry_memory.py.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import RegistryProcess
from spark_kafkalite.registry.served.jute import write_buffer, write_int, write_long, write_string, write_strings
from spark_kafkalite.registry.zookeeper import ZooKeeperStore, open_zookeeper
from tests.contract.protocol_client import ProtocolClient
from tests.contract.test_tree_protocol import (
    ADD_WATCH,
    CREATE,
    EXISTS,
    GET,
    PING,
    SET,
    SET_WATCHES,
    conversation,
    create,
)
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED, SOAK

MUTATIONS = 12_000 if SOAK else 600
MEBIBYTE = 1024 * 1024


class Good:
    """A client that writes and reads back all the time."""

    def __init__(self, address: str) -> None:
        self._store: ZooKeeperStore = open_zookeeper(address, session_timeout_ms=20_000)
        self._store.create("/good").result(PATIENCE_S)
        self.done = 0
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.02):
                data = str(self.done).encode()
                self._store.set("/good", data).result(PATIENCE_S)
                assert self._store.get("/good").result(PATIENCE_S)[0] == data
                self.done += 1
        except BaseException as error:
            self._failure = error

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        self._store.close()
        assert self._failure is None, self._failure
        assert self.done


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcess]:
    with RegistryProcess(tmp_path / "registry") as running:
        good = Good(running.connect)
        yield running
        good.close()
        assert "Traceback" not in running.stderr_path.read_text()
        assert running.stop() == 0


def descriptors(registry: RegistryProcess) -> int:
    return len(list(Path(f"/proc/{registry.pid}/fd").iterdir()))


def mutated(chosen: random.Random, payload: bytes) -> bytes:
    """Change a few bytes, cut or lengthen a frame; sometimes lie about its length."""
    changed = bytearray(payload)
    for _ in range(chosen.choice([1, 1, 2, 5])):
        action = chosen.randrange(4)
        if action == 0 and changed:
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        elif action == 1 and len(changed) > 4:
            start = chosen.randrange(len(changed) - 3)
            changed[start : start + 4] = struct.pack("!i", chosen.choice([-1, 0, 1, 2**31 - 1, -(2**31), 70_000]))
        elif action == 2:
            del changed[chosen.randrange(len(changed) + 1) :]
        else:
            changed += chosen.randbytes(chosen.randrange(20))
    length = len(changed) if chosen.random() < 0.9 else chosen.choice([-5, 0, 2**31 - 1, len(changed) + 3])
    return struct.pack("!i", length) + bytes(changed)


def test_mutated_frames_harm_nobody(registry: RegistryProcess) -> None:
    chosen = random.Random(SEED)
    hello = write_int(0) + write_long(0) + write_int(10_000) + write_long(0) + write_buffer(bytes(16)) + b"\0"
    before = registry.resident_bytes()
    for number in range(MUTATIONS):
        talk = conversation(f"/m{number % 7}")
        at_hello = number % 10 == 0
        with (
            contextlib.suppress(OSError),
            ProtocolClient(registry.connect, hello=not at_hello, timeout_ms=2000) as peer,
        ):
            if at_hello:
                peer.socket.sendall(mutated(chosen, hello))
            for _ in range(chosen.randrange(4)):
                kind, body = chosen.choice(talk)
                peer.send(kind, body)
            kind, body = chosen.choice(talk)
            peer.socket.sendall(mutated(chosen, struct.pack("!ii", 7, kind) + body))
            peer.socket.shutdown(socket.SHUT_WR)
            peer.ended()
    assert registry.running
    assert registry.resident_bytes() - before < 60 * MEBIBYTE, f"seed {SEED}"


def test_a_frame_that_is_too_large_or_never_ends_is_not_kept(registry: RegistryProcess) -> None:
    before = registry.resident_bytes()
    for length in (-1, 0, 2 * MEBIBYTE, 2**31 - 1):
        with ProtocolClient(registry.connect) as peer:
            peer.socket.sendall(struct.pack("!i", length) + b"x" * 100)
            assert peer.ended()
    for hello in (b"GET / HTTP/1.1\r\n\r\n", struct.pack("!i", 5000) + bytes(5000)):
        with ProtocolClient(registry.connect, hello=False) as peer:
            peer.socket.sendall(hello)
            assert peer.ended()
    peers = [ProtocolClient(registry.connect, timeout_ms=1000) for _ in range(150)]
    for peer in peers:
        # A megabyte each, without the last byte; no ping follows.
        with contextlib.suppress(OSError):
            peer.socket.sendall(struct.pack("!i", MEBIBYTE) + bytes(MEBIBYTE - 1))
    assert registry.resident_bytes() - before < 150 * MEBIBYTE
    for peer in peers:
        assert peer.ended()
        peer.close()


def test_a_reader_that_does_not_read_holds_up_itself_alone(registry: RegistryProcess) -> None:
    with ProtocolClient(registry.connect, timeout_ms=60_000) as owner:
        assert owner.ask(CREATE, create("/large", bytes(900_000))).error == 0
    before = registry.resident_bytes()
    slow = [ProtocolClient(registry.connect, timeout_ms=60_000, receive_buffer=4096) for _ in range(4)]
    count = 150
    for peer in slow:
        # 135 MB of answers for each.
        for _ in range(count):
            peer.send(GET, write_string("/large") + b"\0")
    with ProtocolClient(registry.connect) as other:
        for _ in range(50):
            assert other.ask(EXISTS, write_string("/large") + b"\0").error == 0
    assert registry.resident_bytes() - before < 120 * MEBIBYTE
    # The one that reads after all gets everything, in order.
    answers = [slow[0].receive() for _ in range(count)]
    assert [answer.xid for answer in answers] == list(range(1, count + 1))
    assert all(answer.error == 0 and len(answer.body) > 900_000 for answer in answers)
    for peer in slow:
        peer.close()
    assert registry.resident_bytes() - before < 120 * MEBIBYTE


def test_what_a_slow_reader_asks_for_keeps_its_order(registry: RegistryProcess) -> None:
    count = 60
    with ProtocolClient(registry.connect, timeout_ms=60_000, receive_buffer=4096) as peer:
        assert peer.ask(CREATE, create("/large", bytes(900_000))).error == 0
        assert peer.ask(CREATE, create("/counter")).error == 0
        for number in range(count):
            peer.send(GET, write_string("/large") + b"\0")
            # Refused, if it overtook another or was done twice.
            peer.send(SET, write_string("/counter") + write_buffer(b"") + write_int(number))
        with ProtocolClient(registry.connect) as other:
            # The first answers fill what may be held; the changes behind them wait with the reads.
            version = struct.unpack_from("!i", other.ask(EXISTS, write_string("/counter") + b"\0").body, 32)[0]
            assert version < count
        answers = [peer.receive() for _ in range(2 * count)]
        assert [answer.xid for answer in answers] == list(range(3, 2 * count + 3))
        assert [answer.error for answer in answers] == [0] * 2 * count
        zxids = [answer.zxid for answer in answers]
        assert zxids == sorted(zxids)


def test_events_that_nobody_reads_are_bounded(registry: RegistryProcess) -> None:
    name = "/" + "n" * 50_000
    deaf = ProtocolClient(registry.connect, timeout_ms=60_000, receive_buffer=4096)
    deaf.ask(ADD_WATCH, write_string("/") + write_int(1))
    before = registry.resident_bytes()
    with ProtocolClient(registry.connect, timeout_ms=60_000) as writer:
        assert writer.ask(CREATE, create(name)).error == 0
        for _ in range(600):
            assert writer.ask(SET, write_string(name) + write_buffer(b"") + write_int(-1)).error == 0
    assert registry.resident_bytes() - before < 60 * MEBIBYTE
    assert deaf.ended()
    deaf.close()


def test_watches_are_bounded(registry: RegistryProcess) -> None:
    before = registry.resident_bytes()
    with ProtocolClient(registry.connect) as peer, contextlib.suppress(OSError):
        for round_number in range(8):
            paths = [f"/{round_number}/{number}" for number in range(50_000)]
            peer.send(SET_WATCHES, write_long(0) + write_strings([]) + write_strings(paths) + write_strings([]))
        for _ in range(8):
            peer.receive()
    assert registry.resident_bytes() - before < 200 * MEBIBYTE
    said = registry.stderr_path.read_text()
    # Before it was reached, and when it was.
    warned = said.index(": this registry has 50000 watches of session")
    assert warned < said.index(": this registry has 100000 watches of session")
    assert "keeps at most 50000; what comes now is refused: have that client watch fewer nodes" in said
    with ProtocolClient(registry.connect) as other:
        assert other.ask(EXISTS, write_string("/good") + b"\1").error == 0


def test_half_open_and_idle_connections_go(registry: RegistryProcess) -> None:
    before = descriptors(registry)
    half = [ProtocolClient(registry.connect, hello=False) for _ in range(50)]
    for peer in half:
        peer.socket.sendall(b"\0\0")
    wait_until(lambda: descriptors(registry) >= before + 50, "all are accepted")
    # These have been accepted once they have a session, and the first may go while the last one comes.
    silent = [ProtocolClient(registry.connect, timeout_ms=1000) for _ in range(50)]
    for peer in (*silent, *half):
        assert peer.ended()
        peer.close()
    wait_until(lambda: descriptors(registry) <= before, "every descriptor is given back")


def test_connections_are_bounded(registry: RegistryProcess) -> None:
    with contextlib.ExitStack() as stack:
        crowd = []
        for _ in range(1100):
            with contextlib.suppress(OSError):
                crowd.append(socket.create_connection(("127.0.0.1", registry.port), timeout=PATIENCE_S))
                stack.callback(crowd[-1].close)
        crowd[-1].settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            assert crowd[-1].recv(1) == b""
        assert descriptors(registry) < 1100


def test_requests_beyond_the_bound_wait_in_the_socket(registry: RegistryProcess) -> None:
    with ProtocolClient(registry.connect) as peer:
        count = 20_000
        sending = threading.Thread(
            target=lambda: [
                peer.send(PING if n % 5 == 0 else EXISTS, write_string("/good") + b"\0") for n in range(count)
            ],
            daemon=True,
        )
        sending.start()
        answers = [peer.receive() for _ in range(count)]
        sending.join(PATIENCE_S)
        xids = [answer.xid for answer in answers if answer.xid != -2]
        assert xids == sorted(xids)
        assert len(xids) == count - count // 5
        zxids = [answer.zxid for answer in answers if answer.xid != -2]
        assert zxids == sorted(zxids)


def test_requests_of_a_crowd_do_not_keep_others_from_being_served(registry: RegistryProcess) -> None:
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(ProtocolClient(registry.connect, timeout_ms=60_000)) for _ in range(100)]
        frame = struct.pack("!ii", 1, SET) + write_string("/good") + write_buffer(bytes(200_000)) + write_int(1 << 30)
        unfinished = struct.pack("!i", MEBIBYTE) + bytes(900_000)
        for peer in crowd:
            with contextlib.suppress(OSError):
                # Twenty that are refused, for the version is wrong, and most of a further one.
                for _ in range(20):
                    peer.send_frame(frame)
                peer.socket.sendall(unfinished)
        with ProtocolClient(registry.connect) as other:
            assert other.ask(EXISTS, write_string("/good") + b"\0").error == 0

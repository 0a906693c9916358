"""The ends that kazoo's connection thread waits at: nothing is lost, sent twice, or waited for in vain."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from spark_kafkalite.registry.zookeeper_socket import ServerSocket, Waiting, readable
from tests.patience import PATIENCE_S
from tests.seeds import SEED

Pair = tuple[ServerSocket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, server = socket.socketpair()
    ours.setblocking(False)
    server.settimeout(PATIENCE_S)
    end = ServerSocket(ours)
    yield end, server
    end.close()
    server.close()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.close()


def has_arrived(server: socket.socket) -> bool:
    return bool(select.select([server], [], [], 0)[0])


def test_what_has_arrived_is_given_in_pieces_without_asking_again(pair: Pair) -> None:
    end, server = pair
    server.sendall(b"abcdefgh")
    assert readable([end], PATIENCE_S) == [end]
    assert end.recv(4) == b"abcd"
    assert end.pending() == 4
    # What comes later does not overtake.
    server.sendall(b"ijkl")
    assert [end.recv(3), end.recv(100), end.recv(100)] == [b"efg", b"h", b"ijkl"]
    with pytest.raises(BlockingIOError):
        end.recv(1)
    server.close()
    assert readable([end], PATIENCE_S) == [end]
    assert end.recv(4) == b""


def test_what_is_written_is_sent_before_anybody_waits(pair: Pair) -> None:
    end, server = pair
    assert end.send(b"abc") == 3
    assert end.send(memoryview(b"def")) == 3
    assert not has_arrived(server)
    assert readable([end], 0) == []
    assert server.recv(100) == b"abcdef"
    assert end.unsent == 0


def test_it_is_kept_while_more_requests_wait_but_not_for_ever(pair: Pair, waiting: Waiting) -> None:
    end, server = pair
    waiting.send(b"\0\0")
    end.send(b"abc")
    assert readable([end, waiting], PATIENCE_S) == [waiting]
    assert not has_arrived(server)
    waiting.recv(1)
    end.send(b"d" * 100_000)
    # That much is sent, and what has arrived is seen beside what waits.
    server.sendall(b"answer")
    assert readable([end, waiting], PATIENCE_S) == [end, waiting]
    assert has_arrived(server)
    waiting.recv(1)
    assert readable([end, waiting], PATIENCE_S) == [end]


def test_a_server_that_takes_nothing_before_it_is_rid_of_its_answers(pair: Pair, waiting: Waiting) -> None:
    end, server = pair
    server.settimeout(0.2)
    with pytest.raises(TimeoutError):
        server.sendall(b"a" * 10_000_000)
    end.send(b"r" * 10_000_000)
    assert readable([end, waiting], PATIENCE_S) == [end]
    assert end.unsent > 0


def test_the_time_passes_and_requests_of_other_threads_end_the_wait(pair: Pair, waiting: Waiting) -> None:
    end, _ = pair
    began_s = time.monotonic()
    assert readable([end, waiting], 0.05) == []
    assert time.monotonic() - began_s >= 0.05
    asks = threading.Timer(0.05, waiting.send, (b"\0",))
    asks.start()
    assert readable([end, waiting], PATIENCE_S) == [waiting]
    asks.join()
    assert waiting.recv(1) == b"\0"
    with pytest.raises(BlockingIOError):
        waiting.recv(1)
    assert readable([end, waiting], 0) == []


def test_requests_of_many_threads_are_counted_once_each(waiting: Waiting) -> None:
    def ask() -> None:
        for _ in range(2000):
            waiting.send(b"\0")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(8000):
        assert readable([waiting], PATIENCE_S) == [waiting]
        waiting.recv(1)
    for thread in threads:
        thread.join()
    assert readable([waiting], 0) == []


def test_a_broken_connection_is_an_error_or_readable_as_a_sockets_is(pair: Pair) -> None:
    end, server = pair
    server.close()
    assert readable([end], PATIENCE_S) == [end]
    end.send(b"abc")
    with pytest.raises(OSError):
        readable([end], PATIENCE_S)


def test_bytes_come_through_whole_and_in_order_in_both_directions(pair: Pair, waiting: Waiting) -> None:
    end, server = pair
    seed = SEED
    print(f"seed {seed}")
    chance = random.Random(seed)
    wanted, sent = chance.randbytes(3_000_000), chance.randbytes(3_000_000)
    received = bytearray()

    def answer() -> None:
        """Take everything, and only now and then."""
        server.sendall(wanted[:1_000_000])
        while len(received) < len(sent):
            received.extend(server.recv(chance.choice((100, 70_000, 1_000_000))))
        server.sendall(wanted[1_000_000:])

    server_thread = threading.Thread(target=answer)
    server_thread.start()
    arrived, at = bytearray(), 0
    own = random.Random(seed + 1)
    while len(arrived) < len(wanted) or end.unsent:
        if at < len(sent):
            step = own.choice((1, 100, 5_000, 200_000))
            at += end.send(sent[at : at + step])
            if own.random() < 0.5 and not waiting.pending():
                waiting.send(b"\0")
        ready = readable([end, waiting], 20 if at >= len(sent) else 0)
        if waiting in ready and own.random() < 0.5:
            waiting.recv(1)
        if end in ready:
            arrived += end.recv(own.choice((4, 1000, 100_000)))
        if at >= len(sent) and waiting.pending():
            waiting.recv(1)
    server_thread.join(PATIENCE_S)
    assert (bytes(arrived), bytes(received)) == (wanted, sent)

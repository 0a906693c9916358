"""What a connection to the registry does while its server has no time for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.net.channel import PlainChannel
from spark_kafkalite.registry.served.connection import HELLO_S, TreeConnection
from spark_kafkalite.wire.frame import framed
from tests.patience import PATIENCE_S


class BusyServer:
    """A server that gives connections their turns when the test says so."""

    def __init__(self, *, opens_sessions: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(4096))
        self.room = memoryview(bytearray(4096))
        self.frames: list[bytes] = []
        self.waiting = asyncio.Event()
        self._opens_sessions = opens_sessions

    def advance_soon(self, connection: TreeConnection) -> None:
        connection.in_turn = True
        self.waiting.set()

    def four_letters(self, connection: TreeConnection, word: bytes) -> bool:
        return False

    def take(self, connection: TreeConnection, frame: bytes) -> None:
        self.frames.append(frame)
        connection.opening = self._opens_sessions

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@contextlib.contextmanager
def connected(server: Any) -> Iterator[tuple[TreeConnection, socket.socket]]:
    """Yield a connection, and the client's socket."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        accepted, _ = listening.accept()
        connection = TreeConnection(server, PlainChannel(accepted), "127.0.0.1:1")
        yield connection, client
        connection.close("the test ends")


def take_turn(connection: TreeConnection) -> None:
    for _ in connection.advance_work():
        pass


@pytest.mark.parametrize("hello", [framed(b"hello"), framed(b"hello")[:5]], ids=["whole", "cut"])
def test_a_hello_that_waits_for_its_turn_is_not_overdue(hello: bytes) -> None:
    async def run() -> None:
        server = BusyServer(opens_sessions=True)
        with connected(server) as (connection, client):
            late_s = connection.began_s + HELLO_S + 1
            assert connection.overdue(late_s) and not connection.overdue(late_s - 2)
            client.sendall(hello)
            await asyncio.wait_for(server.waiting.wait(), PATIENCE_S)
            assert connection.waits_for_server and not connection.overdue(late_s)
            take_turn(connection)
            assert not connection.waits_for_server
            # A client that sends half of its hello is silent.
            is_cut = hello != framed(b"hello")
            assert connection.overdue(late_s) == (not server.frames) == is_cut

    asyncio.run(run())


def test_a_client_that_sends_without_end_leaves_others_their_turn() -> None:
    async def run() -> None:
        server = BusyServer(opens_sessions=False)
        with connected(server) as (connection, client):
            sent = [b"%d" % number for number in range(100)]
            client.sendall(b"".join(map(framed, sent)))
            await asyncio.wait_for(server.waiting.wait(), PATIENCE_S)
            turns = 0
            while connection.in_turn:
                before = len(server.frames)
                take_turn(connection)
                assert len(server.frames) - before <= 32
                turns += 1
            assert server.frames == sent and turns == 4

    asyncio.run(run())

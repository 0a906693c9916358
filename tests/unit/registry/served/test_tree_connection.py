from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from spark_kafkalite.net.channel import PlainChannel
from spark_kafkalite.registry.served.connection import HELLO_S, TreeConnection
from spark_kafkalite.wire.frame import framed
from tests.patience import PATIENCE_S


class BusyServer:
    """A server that gives connections their turns when the test says so."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(4096))
        self.room = memoryview(bytearray(4096))
        self.frames: list[bytes] = []
        self.waiting = asyncio.Event()

    def advance_soon(self, connection: TreeConnection) -> None:
        connection.in_turn = True
        self.waiting.set()

    def four_letters(self, connection: TreeConnection, word: bytes) -> bool:
        return False

    def take(self, connection: TreeConnection, frame: bytes) -> None:
        self.frames.append(frame)
        connection.opening = True

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("hello", [framed(b"hello"), framed(b"hello")[:5]], ids=["whole", "cut"])
def test_a_hello_that_waits_for_its_turn_is_not_overdue(hello: bytes) -> None:
    async def run() -> None:
        server: Any = BusyServer()
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()) as theirs,
        ):
            mine, _ = listening.accept()
            connection = TreeConnection(server, PlainChannel(mine), "127.0.0.1:1")
            late_s = connection.began_s + HELLO_S + 1
            assert connection.overdue(late_s) and not connection.overdue(late_s - 2)
            theirs.sendall(hello)
            await asyncio.wait_for(server.waiting.wait(), PATIENCE_S)
            assert connection.waits_for_server and not connection.overdue(late_s)
            for _ in connection.advance_work():
                pass
            assert not connection.waits_for_server
            # A client that sends half of its hello is silent.
            assert connection.overdue(late_s) == (not server.frames) == (hello != framed(b"hello"))
            connection.close("the test ends")

    asyncio.run(run())


def test_a_client_that_sends_without_end_leaves_others_their_turn() -> None:
    async def run() -> None:
        server: Any = BusyServer()
        server.take = lambda _, frame: server.frames.append(frame)
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()) as theirs,
        ):
            mine, _ = listening.accept()
            connection = TreeConnection(server, PlainChannel(mine), "127.0.0.1:1")
            sent = [b"%d" % number for number in range(100)]
            theirs.sendall(b"".join(map(framed, sent)))
            await asyncio.wait_for(server.waiting.wait(), PATIENCE_S)
            turns = 0
            while connection.in_turn:
                before = len(server.frames)
                for _ in connection.advance_work():
                    pass
                assert len(server.frames) - before <= 32
                turns += 1
            assert server.frames == sent and turns == 4
            connection.close("the test ends")

    asyncio.run(run())

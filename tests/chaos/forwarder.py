"""The program behind ``links``: TCP forwarders in one process, told what to do by lines on its standard input.

It has a process of its own because the clients of a test are many threads of another: where these are busy, a
forwarder among them waits for the interpreter's lock at every step. On a slow machine connections then ended before
they were forwarded, their successors came faster than they could be taken, and that went on for ever.

Each line is a JSON list: the name of a method of ``Forwarder`` and its arguments. Each is answered by a line with its
result. The program ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final

_PIECE_BYTES: Final = 65536
_UNKNOWN: Final = 0
# Closed with it, a connection ends with a reset.
_NO_LINGER: Final = struct.pack("ii", 1, 0)
# Of a request: its size, API, version and number, and then its client id.
_CLIENT_ID: Final = struct.Struct(">ihhih")
_BROKER_CLIENT_ID: Final = re.compile(rb"broker-([0-9]+)")


@dataclass
class Direction:
    """How data goes one way. ``held`` data waits until it is not held any more, as in a network that drops packets;
    ``delay_s`` and ``bytes_per_s`` are those of the line. ``damages`` pieces will have a bit changed, behind a mark."""

    held: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    damages: int = 0
    mark: str = ""

    def heal(self) -> None:
        self.held, self.delay_s, self.bytes_per_s, self.damages = False, 0.0, 0.0, 0

    def pass_through(self, piece: bytes) -> bytes:
        """Return a piece as it arrives."""
        mark = self.mark.encode()
        at = piece.find(mark) + len(mark) if self.damages and mark in piece else len(piece)
        if at == len(piece):
            return piece
        self.damages -= 1
        return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]


@dataclass
class _Link:
    """From a source to the server behind a door, and back. ``is_cut`` refuses and ends connections."""

    there: Direction = field(default_factory=Direction)
    back: Direction = field(default_factory=Direction)
    is_cut: bool = False
    connections: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = field(default_factory=list)

    def heal(self) -> None:
        """Be as a good network is; connections that were cut stay ended."""
        self.there.heal()
        self.back.heal()
        self.is_cut = False

    def end(self) -> None:
        """End its connections with a reset."""
        for pair in self.connections:
            for writer in pair:
                _reset(writer)
        self.connections.clear()


class _Door:
    """One forwarder."""

    def __init__(self, forwarder: Forwarder, target_port: int, source: int | None) -> None:
        self._forwarder = forwarder
        self._target_port = target_port
        self._source = source
        self.links: dict[int, _Link] = {}
        self.server: asyncio.Server

    def link(self, source: int) -> _Link:
        """Return the link from a source, by its number; 0 is everybody who has none."""
        return self.links.setdefault(source, _Link())

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection, and serve it to its end."""
        first = b""
        try:
            if self._source is None:
                first = await reader.read(_PIECE_BYTES)
            link = self.link(source_of(first) if self._source is None else self._source)
            if link.is_cut:
                _reset(writer)
                return
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            # As if nobody listened here.
            _reset(writer)
            return
        pair = (writer, there_writer)
        link.connections.append(pair)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, there_writer, link.there, first))
                both.create_task(self._copy(there_reader, writer, link.back))
        finally:
            with contextlib.suppress(ValueError):
                link.connections.remove(pair)
            for each in pair:
                each.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction, first: bytes = b""
    ) -> None:
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        if first:
            line.put_nowait((time.monotonic() + way.delay_s, first))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver(line, writer, way))
            piece = b"-"
            while piece:
                try:
                    piece = await reader.read(_PIECE_BYTES)
                except OSError:
                    piece = b""
                line.put_nowait((time.monotonic() + way.delay_s, piece))

    async def _deliver(
        self, line: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, way: Direction
    ) -> None:
        while True:
            due, piece = await line.get()
            await asyncio.sleep(max(due - time.monotonic(), 0))
            if way.bytes_per_s:
                await asyncio.sleep(len(piece) / way.bytes_per_s)
            # The end of a connection does not get through either.
            while way.held:
                await self._forwarder.changed()
            try:
                if not piece:
                    writer.write_eof()
                    return
                writer.write(way.pass_through(piece))
                await writer.drain()
            except (OSError, RuntimeError):
                return


class Forwarder:
    """All doors, by the numbers in which they were opened. Its public methods are what the lines of input may name."""

    def __init__(self) -> None:
        self._doors: list[_Door] = []
        self._news = asyncio.Event()

    async def open_door(self, target_port: int, source: int | None) -> int:
        """Listen on a free port for what is meant for another; return the port."""
        door = _Door(self, target_port, source)
        listener = socket.create_server(("127.0.0.1", 0))
        door.server = await asyncio.start_server(door.forward, sock=listener)
        self._doors.append(door)
        port: int = listener.getsockname()[1]
        return port

    async def change(self, ways: list[tuple[int, int, str]], conditions: dict[str, Any]) -> None:
        """Set conditions of directions, each given by its door, its source, and ``there`` or ``back``."""
        for door, source, way in ways:
            direction: Direction = getattr(self._doors[door].link(source), way)
            for name, value in conditions.items():
                setattr(direction, name, value)
        self._tell()

    async def damages_left(self, door: int, source: int, way: str) -> int:
        """Return how many pieces of a direction are still to be damaged."""
        direction: Direction = getattr(self._doors[door].link(source), way)
        return direction.damages

    async def cut(self, door: int, source: int) -> None:
        """End a source's connections, and take no more until its link is healed."""
        self._doors[door].link(source).is_cut = True
        self._doors[door].link(source).end()

    async def reset(self, door: int, source: int) -> None:
        """End a source's connections with a reset."""
        self._doors[door].link(source).end()

    async def heal(self) -> None:
        """Be a good network everywhere."""
        for door in self._doors:
            for link in door.links.values():
                link.heal()
        self._tell()

    async def changed(self) -> None:
        """Wait for the next change of conditions."""
        await self._news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def source_of(first: bytes) -> int:
    """Return the number of the broker whose first request begins a connection; 0 for any other."""
    if len(first) >= _CLIENT_ID.size:
        length = _CLIENT_ID.unpack_from(first)[-1]
        client_id = first[_CLIENT_ID.size :][: max(length, 0)]
        found = _BROKER_CLIENT_ID.fullmatch(client_id)
        if found is not None and len(client_id) == length:
            return int(found[1])
    return _UNKNOWN


def _reset(writer: asyncio.StreamWriter) -> None:
    connected = writer.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


async def _obey() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    forwarder = Forwarder()
    while line := await lines.readline():
        method, *arguments = json.loads(line)
        print(json.dumps(await getattr(forwarder, method)(*arguments)), flush=True)


if __name__ == "__main__":
    asyncio.run(_obey())

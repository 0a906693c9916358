"""The network between brokers, and between them and the registry, as a test may have it: TCP forwarders, without root.

A ``Door`` stands before one server's port; everybody who is to be disturbed connects to the door instead. Each pair of
a source and a door has a ``Link``, with a condition for each direction, so that one broker may be cut off from another
and nobody else. Who connects is found out by the process that owns the other end of the connection.

All of them live in one thread with a loop of its own; conditions are changed from any thread, between two pieces of
data.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_PIECE_BYTES: Final = 65536
_UNKNOWN: Final = 0
# Closed with it, a connection ends with a reset.
_NO_LINGER: Final = struct.pack("ii", 1, 0)
# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h; the position is that in struct inet_diag_msg.
_NETLINK_SOCK_DIAG: Final = 4
_NETLINK_HEADER_BYTES: Final = 16
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_NLMSG_ERROR: Final = 2
_ALL_STATES: Final = 0xFFFFFFFF
_NO_COOKIE: Final = (0xFFFFFFFF, 0xFFFFFFFF)
_INODE_POSITION: Final = 68


@dataclass
class Direction:
    """How data goes one way. ``held`` data waits until it is not held any more, as in a network that drops packets;
    ``delay_s`` and ``bytes_per_s`` are those of the line. ``damages`` pieces will have a bit changed, behind a mark."""

    held: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    damages: int = 0
    mark: bytes = b""

    def heal(self) -> None:
        self.held, self.delay_s, self.bytes_per_s, self.damages = False, 0.0, 0.0, 0

    def pass_through(self, piece: bytes) -> bytes:
        """Return a piece as it arrives."""
        at = piece.find(self.mark) + len(self.mark) if self.damages and self.mark in piece else len(piece)
        if at == len(piece):
            return piece
        self.damages -= 1
        return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]


@dataclass
class Link:
    """From ``source`` to the server behind a door, and back. ``cut`` refuses and ends connections."""

    source: int
    there: Direction = field(default_factory=Direction)
    back: Direction = field(default_factory=Direction)
    is_cut: bool = False
    connections: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = field(default_factory=list)

    def hold(self) -> None:
        """Let nothing pass in either direction; connections stay open, and new ones are taken."""
        self.there.held = self.back.held = True

    def heal(self) -> None:
        """Be as a good network is; connections that were cut stay ended."""
        self.there.heal()
        self.back.heal()
        self.is_cut = False


class Door:
    """One forwarder. ``address`` is where to connect to; ``link`` is how it treats a source."""

    def __init__(self, network: Network, target_port: int, port: int) -> None:
        self.target_port = target_port
        self.port = port
        self._network = network
        self._links: dict[int, Link] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def link(self, source: int) -> Link:
        """Return the link from a source, by its number; 0 is everybody who has none."""
        return self._links.setdefault(source, Link(source))

    def reset(self, source: int) -> None:
        """End a source's connections with a reset."""
        self._network.do(lambda: self._end(self.link(source)))

    def cut(self, source: int) -> None:
        """End a source's connections, and take no more until its link is healed."""

        def cut() -> None:
            self.link(source).is_cut = True
            self._end(self.link(source))

        self._network.do(cut)

    def _end(self, link: Link) -> None:
        for pair in link.connections:
            for writer in pair:
                _reset(writer)
        link.connections.clear()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        self._network.run(self._forward(reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self.link(self._network.source_of(writer.get_extra_info("peername")[1], self.port))
        try:
            if link.is_cut:
                _reset(writer)
                return
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            # As if nobody listened here.
            _reset(writer)
            return
        pair = (writer, there_writer)
        link.connections.append(pair)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, there_writer, link.there))
                both.create_task(self._copy(there_reader, writer, link.back))
        finally:
            with contextlib.suppress(ValueError):
                link.connections.remove(pair)
            for each in pair:
                each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
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
                await self._network.changed()
            try:
                if not piece:
                    writer.write_eof()
                    return
                writer.write(way.pass_through(piece))
                await writer.drain()
            except (OSError, RuntimeError):
                return


class Network:
    """All doors of a cluster; a context manager. ``pids`` says which process is which source, as it is now."""

    def __init__(self, pids: Callable[[], dict[int, int]]) -> None:
        self._pids = pids
        self.doors: list[Door] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="chaos-network", daemon=True)
        self._news = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def open_door(self, target_port: int) -> Door:
        """Listen on a free port for what is meant for another."""

        async def listen() -> Door:
            listener = socket.create_server(("127.0.0.1", 0))
            door = Door(self, target_port, listener.getsockname()[1])
            self._servers.append(await asyncio.start_server(door.connected, sock=listener))
            return door

        door = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)
        self.doors.append(door)
        return door

    def do(self, change: Callable[[], Any]) -> None:
        """Change conditions; it holds for everything that passes after this returns."""

        async def apply() -> None:
            change()
            news, self._news = self._news, asyncio.Event()
            news.set()

        asyncio.run_coroutine_threadsafe(apply(), self._loop).result(10)

    def hold(self, links: Iterable[Link]) -> None:
        """Hold these links in both directions."""
        chosen = list(links)
        self.do(lambda: [link.hold() for link in chosen])

    def heal(self) -> None:
        """Be a good network everywhere."""
        self.do(lambda: [link.heal() for door in self.doors for link in door._links.values()])

    async def changed(self) -> None:
        """Wait for the next change of conditions."""
        await self._news.wait()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something until it ends, or the network does."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def source_of(self, port: int, door_port: int) -> int:
        """Return the number of the process at the other end of a connection, by its port; 0 when it has none."""
        inode = inode_of(port, door_port)
        for source, pid in self._pids().items():
            if inode is not None and _has_socket(pid, inode):
                return source
        return _UNKNOWN

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        rest = list(self._tasks)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    connected = writer.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


def inode_of(port: int, door_port: int) -> int | None:
    """Return the inode of the socket on this host that is connected from one port to the other; None when there is
    none.

    The kernel is asked for this one alone (sock_diag(7), inet_diag) where it can be: its whole table takes longer to
    read than other connections can wait when many come at once.
    """
    loopback = socket.inet_aton("127.0.0.1") + bytes(12)
    wanted = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
    wanted += struct.pack(">HH", port, door_port) + loopback + loopback + struct.pack("=III", 0, *_NO_COOKIE)
    header = struct.pack("=IHHII", _NETLINK_HEADER_BYTES + len(wanted), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.sendto(header + wanted, (0, 0))
            found = kernel.recv(_PIECE_BYTES)
    except OSError:
        return inode_in_table(port, door_port)
    if struct.unpack_from("=IH", found)[1] != _NLMSG_ERROR:
        inode: int = struct.unpack_from("=I", found, _NETLINK_HEADER_BYTES + _INODE_POSITION)[0]
        return inode
    problem = -struct.unpack_from("=i", found, _NETLINK_HEADER_BYTES)[0]
    return None if problem == errno.ENOENT else inode_in_table(port, door_port)


def inode_in_table(port: int, door_port: int) -> int | None:
    """Do the same with the table; it may leave a connection out while others come and go."""
    ends = (f":{port:04X}", f":{door_port:04X}")
    # A Java process has sockets of the newer kind only.
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
                    return int(fields[9])
    return None


def _has_socket(pid: int, inode: int) -> bool:
    wanted = f"socket:[{inode}]"
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                if os.readlink(descriptor.path) == wanted:
                    return True
    return False

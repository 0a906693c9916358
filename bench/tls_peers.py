"""Clients of TLS without a client library, in processes of their own: many handshakes, and many idle connections.

They do not verify the broker's certificate. Floods have a low priority: how soon the client next to them gets a core is
not what is measured.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from spark_kafkalite.net.descriptors import raise_limit
from spark_kafkalite.wire.frame import LENGTH, framed

PROCESSES: Final = 2
_NUMBERS: Final = range(PROCESSES)
_NICENESS: Final = 10
_PATIENCE_S: Final = 60.0
_SPAWN: Final = multiprocessing.get_context("spawn")
# ApiVersions, version 0.
_HELLO: Final = framed(struct.pack(">hhih", 18, 0, 1, -1))


@dataclass(frozen=True)
class Handshakes:
    """How many handshakes there were, in how many seconds, and how many connections failed before theirs was done."""

    count: int
    failed: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.count / self.seconds


def _context(client_key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.VerifyMode.CERT_NONE
    if client_key is not None:
        context.load_cert_chain(client_key)
    return context


def _connect(context: ssl.SSLContext, address: str, source: str) -> ssl.SSLSocket:
    """Connect from an address of loopback: each has all ports for itself. Raises OSError."""
    host, _, port = address.rpartition(":")
    connected = socket.create_connection((host, int(port)), _PATIENCE_S, (source, 0))
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(connected)
    except OSError:
        connected.close()
        raise


def _say_hello(connected: ssl.SSLSocket) -> None:
    """Ask a small request, and read its answer."""
    connected.sendall(_HELLO)
    answer = connected.recv(4096)
    while len(answer) < 4 or len(answer) < 4 + LENGTH.unpack_from(answer)[0]:
        received = connected.recv(4096)
        if not received:
            raise ConnectionError("closed by the broker")
        answer += received


@contextmanager
def _processes(target: Callable[..., None], arguments: Sequence[tuple[object, ...]]) -> Iterator[list[Connection]]:
    """Run a process for each of the arguments, and give the other end of the pipe that each has as its last one."""
    running = []
    try:
        for each in arguments:
            here, there = _SPAWN.Pipe()
            process = _SPAWN.Process(target=target, args=(*each, there), daemon=True)
            process.start()
            there.close()
            running.append((process, here))
        yield [here for _, here in running]
    finally:
        for process, _ in running:
            process.kill()
            process.join()


def _complete_one(context: ssl.SSLContext, address: str, source: str) -> None:
    with _connect(context, address, source) as connected:
        # The broker closes once it has read the end, and so also the client's last part of the handshake.
        connected.shutdown(socket.SHUT_WR)
        while connected.recv(4096):
            pass


def _abandon_one(hello: bytes, address: str, source: str) -> None:
    """Send the first part of a handshake, and leave without a word once the broker has answered."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _PATIENCE_S, (source, 0)) as connected:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.sendall(hello)
        if not connected.recv(1):
            raise ConnectionError("the broker does not answer a handshake")


def _first_part(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def _shake_hands(
    address: str,
    client_key: Path | None,
    number: int,
    per_s: float,
    seconds: float,
    abandons: bool,
    pipe: Connection,
) -> None:
    os.nice(_NICENESS)
    context, source = _context(client_key), f"127.0.0.{2 + number}"
    # The first one shows that the broker takes this client.
    with _connect(context, address, source) as first:
        _say_hello(first)
    hello = _first_part(context)
    pipe.send(None)
    pipe.recv()
    count = failed = 0
    began_s = time.monotonic()
    while (now_s := time.monotonic()) < began_s + seconds:
        if per_s and (ahead_s := began_s + (count + failed) / per_s - now_s) > 0:
            time.sleep(ahead_s)
        try:
            if abandons:
                _abandon_one(hello, address, source)
            else:
                _complete_one(context, address, source)
        except OSError:
            failed += 1
        else:
            count += 1
    pipe.send((count, failed, time.monotonic() - began_s))


@contextmanager
def flood(
    address: str, client_key: Path | None, seconds: float, per_s: float = 0.0, *, abandons: bool = False
) -> Iterator[list[Handshakes]]:
    """Have processes do handshakes, one after the other each, for some time: ``per_s`` in all, or all they can.

    With ``abandons`` they leave once the broker has answered the first part, which costs it most, and them nearly
    nothing. The list that is yielded has the sum at the end of the ``with`` block, which waits for the processes.
    """
    found: list[Handshakes] = []
    each = (per_s / PROCESSES, seconds, abandons)
    with _processes(_shake_hands, [(address, client_key, number, *each) for number in _NUMBERS]) as pipes:
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send(None)
        yield found
        counts, failures, times = zip(*(pipe.recv() for pipe in pipes), strict=True)
        found.append(Handshakes(sum(counts), sum(failures), max(times)))


def _hold(address: str, number: int, count: int, pipe: Connection) -> None:
    raise_limit()
    context, source = _context(None), f"127.0.0.{2 + number}"
    held = []
    for _ in range(count):
        connected = _connect(context, address, source)
        _say_hello(connected)
        held.append(connected)
    pipe.send(None)
    pipe.recv()
    for connected in held:
        connected.close()
    pipe.send(None)


@contextmanager
def idle_connections(address: str, count: int) -> Iterator[None]:
    """Have processes open connections, ask one small request over each, and keep them for the ``with`` block."""
    with _processes(_hold, [(address, each, count // PROCESSES) for each in _NUMBERS]) as pipes:
        for pipe in pipes:
            pipe.recv()
        yield
        for pipe in pipes:
            pipe.send(None)
            pipe.recv()

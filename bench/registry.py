"""How fast is the registry in ZooKeeper's protocol (`kafkalite registry`), beside ZooKeeper 3.9 itself?

Ready-made requests on 100-byte nodes over one connection or sixteen; both put every write on the disk before they
answer, and group what waits. A watch's latency runs from the sending of a change by one client until another, which
watches the node, has the event. ``CPU`` is the server's.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.measurement import Row, Usage, percentile, resident_bytes
from bench.raw_load import Link, closed_loop
from spark_kafkalite.processes.cluster import RegistryProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.registry.served.jute import write_buffer, write_int, write_long, write_string
from spark_kafkalite.wire.frame import framed

T = TypeVar("T")

_PEER = "ZooKeeper 3.9.5"
_CREATE, _EXISTS, _GET, _SET = 1, 3, 4, 5
_OPEN = write_int(1) + write_int(31) + write_string("world") + write_string("anyone")
_DATA = b"x" * 100
_HELLO = framed(write_int(0) + write_long(0) + write_int(60_000) + write_long(0) + write_buffer(bytes(16)) + b"\0")
_NODES = 16


@dataclass(frozen=True)
class Shape:
    """How the load is spread: clients, and requests of each that are unanswered at a time."""

    name: str
    kind: int
    clients: int
    in_flight: int


SHAPES = (
    Shape("writes, 1 client", _SET, 1, 1),
    Shape("writes, 1 client, 64 in flight", _SET, 1, 64),
    Shape("writes, 16 clients", _SET, 16, 1),
    Shape("reads, 1 client", _GET, 1, 1),
    Shape("reads, 16 clients, 16 in flight each", _GET, 16, 16),
)


def _request(kind: int, body: bytes) -> bytes:
    return framed(struct.pack("!ii", 1, kind) + body)


def _path(number: int) -> str:
    return f"/node-{number}"


def _set(number: int) -> bytes:
    return _request(_SET, write_string(_path(number)) + write_buffer(_DATA) + write_int(-1))


def _check(response: bytes) -> None:
    error = struct.unpack_from("!iqi", response)[2]
    if error:
        raise RuntimeError(f"error {error}")


@contextlib.contextmanager
def _session(address: str) -> Iterator[Link]:
    with Link(address) as link:
        link.call(_HELLO)
        yield link


def _prepare(address: str) -> None:
    with _session(address) as link:
        for number in range(_NODES):
            _check(
                link.call(_request(_CREATE, write_string(_path(number)) + write_buffer(_DATA) + _OPEN + write_int(0)))
            )


def _load(address: str, pid: int, shape: Shape, seconds: float) -> tuple[float, float, float, float]:
    """Return requests a second, p50 and p99 in ms, and microseconds of the server's CPU a request."""
    get = [_request(_GET, write_string(_path(number)) + b"\0") for number in range(shape.clients)]
    requests = [_set(number) for number in range(shape.clients)] if shape.kind == _SET else get
    usage = Usage(pid)
    load = closed_loop(address, requests, shape.in_flight, seconds, _check, hello=_HELLO)
    ms = [1000 * latency for latency in load.latencies_s]
    return load.requests / load.seconds, percentile(ms, 0.5), percentile(ms, 0.99), usage.cpu_s * 1e6 / load.requests


def _watch_ms(address: str, seconds: float) -> list[float]:
    latencies = []
    watch, change = _request(_EXISTS, write_string(_path(0)) + b"\1"), _set(0)
    with _session(address) as watching, _session(address) as writing:
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            _check(watching.call(watch))
            began_s = time.perf_counter()
            writing.send(change)
            watching.receive()
            latencies.append(1000 * (time.perf_counter() - began_s))
            writing.receive()
    return latencies


def rows(quick: bool) -> Iterator[Row]:
    """Measure both in turn and yield a row for each figure."""
    seconds, rounds = (1.0, 2) if quick else (3.0, 5)
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as name:
        directory = Path(name)
        began_s = time.perf_counter()
        with RegistryProcess(directory / "ours") as ours:
            our_start_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            with ZooKeeperServer(directory / "peer", heap_mb=512, tick_ms=2000) as peer:
                peer_start_s = time.perf_counter() - began_s
                yield Row("start until it serves", "s", [our_start_s], [peer_start_s], _PEER, higher_is_better=False)
                servers = {"ours": (ours.connect, ours.pid), "peer": (peer.connect, peer.pid)}
                for address, pid in servers.values():
                    _prepare(address)
                    # The peer's code is compiled while it runs.
                    for shape in SHAPES:
                        _load(address, pid, shape, seconds)
                for shape in SHAPES:
                    yield from _load_rows(shape, servers, seconds, rounds)
                watched = _in_turn(servers, rounds, lambda address, _: _watch_ms(address, seconds))
                for fraction in (0.5, 0.99):
                    ours_ms, peer_ms = ([percentile(ms, fraction) for ms in watched[who]] for who in ("ours", "peer"))
                    what = f"watch, change to event, p{100 * fraction:g}"
                    yield Row(what, "ms", ours_ms, peer_ms, _PEER, higher_is_better=False)
                memory = {who: resident_bytes(pid) / 2**20 for who, (_, pid) in servers.items()}
                yield Row("resident memory", "MiB", [memory["ours"]], [memory["peer"]], _PEER, higher_is_better=False)


def _load_rows(shape: Shape, servers: dict[str, tuple[str, int]], seconds: float, rounds: int) -> Iterator[Row]:
    measured = _in_turn(servers, rounds, lambda address, pid: _load(address, pid, shape, seconds))
    columns = (("rate", "1/s"), ("p50", "ms"), ("p99", "ms"), ("CPU", "us a request"))
    for column, (what, unit) in enumerate(columns):
        ours, peer = ([figures[column] for figures in measured[who]] for who in ("ours", "peer"))
        yield Row(f"{shape.name}: {what}", unit, ours, peer, _PEER, higher_is_better=column == 0)


def _in_turn(servers: dict[str, tuple[str, int]], rounds: int, measure: Callable[[str, int], T]) -> dict[str, list[T]]:
    measured: dict[str, list[T]] = {who: [] for who in servers}
    for _ in range(rounds):
        for who, (address, pid) in servers.items():
            measured[who].append(measure(address, pid))
    return measured

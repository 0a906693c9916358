"""A hostile peer: real requests of every served API and version, each damaged, over a few connections at once.

    python -m tests.interop.hostile.mutating_peer HOST:PORT SEED COUNT CONNECTIONS

Runs as a process of its own, so that a well-behaved client beside it can be timed. Behind every damaged request goes an
undamaged ApiVersions request: it is answered, or the connection is closed. Neither is a hang, and ends the run; the
exceptions are requests that asked to wait (a fetch, a produce), which this peer gives up after a moment. Requests whose
length says more than there is are followed by the end of the stream instead, which the broker must answer with its own.

Prints one JSON object: what became of the requests, and the slowest of them.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from crc32c import crc32c

from spark_kafkalite.wire import codec, packed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from tests.interop.hostile.sample_requests import sample_requests
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S

# Damaged batches go to the first of these; those whose checksum was made right again go to the second.
DAMAGED_TOPIC = "damaged"
RESEALED_TOPIC = "resealed"
GOOD_VALUES = [b"undamaged-%d" % number for number in range(5)]

# Produce, Fetch, JoinGroup and SyncGroup answer when something has happened, which may be never.
_MAY_WAIT = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
# How long a request that asked to wait is given before its connection is closed.
_GIVE_UP_S = 0.5
_GOLDEN = Path(__file__).parents[2] / "golden" / "wire" / "requests.json"
# What makes parsers stumble: the ends of the ranges of every width, and lengths that lie a little.
_EDGE_NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 2**24, 2**31 - 1, 2**32 - 1, 2**32 - 2)

Frame = bytes
Seed = tuple[int, Frame]


def undamaged_requests(bootstrap: str) -> dict[tuple[int, int], list[Frame]]:
    """Return requests, without length, for every API and version that the broker says it serves."""
    with RawClient(bootstrap) as client:
        served = client.call(ApiVersionsRequest(), 2).api_keys
    found: dict[tuple[int, int], list[Frame]] = {}
    for entry in served:
        for version in range(entry.min_version, entry.max_version + 1):
            if entry.api_key == ApiKey.PRODUCE and version < 3:
                continue  # advertised, and closes the connection: there is nothing to damage
            found[entry.api_key, version] = list(_requests(entry.api_key, version))
    for captured in json.loads(_GOLDEN.read_text(encoding="utf-8")):
        at = captured["api_key"], captured["version"]
        if at in found:
            found[at].append(bytes.fromhex(captured["frame"]))
    empty = [at for at, requests in found.items() if not requests]
    if empty:
        raise AssertionError(f"served, and no request of it is known here: {empty}")
    return found


def _requests(api_key: int, version: int) -> Iterator[Frame]:
    if api_key == ApiKey.PRODUCE:
        for topic in (DAMAGED_TOPIC, RESEALED_TOPIC):
            for name in ("none", "gzip", "snappy", "lz4", "zstd"):
                if name == "zstd" and version < 7:
                    continue
                batch = make_batch(GOOD_VALUES, timestamp_ms=time.time_ns() // 1_000_000, key=b"key", codec=name)
                for acks in (-1, 1, 0):
                    pieces, _ = packed.pack_produce_request(7, "mutant", version, acks, 100, [(topic, [(0, batch)])])
                    yield b"".join(bytes(piece) for piece in pieces)  # type: ignore[arg-type]
        return
    if api_key == ApiKey.FETCH:
        asked = [packed.FetchPartition(0, offset, 1000, -1) for offset in (0, 3)]
        # Of the topics' ids nobody here knows, so that with ids unknown topics are read.
        topics = (DAMAGED_TOPIC, RESEALED_TOPIC) if version < packed.FETCH_BY_ID else (b"d" * 16, b"r" * 16)
        request = packed.FetchRequest([(topics[0], asked), (topics[1], asked[:1])], max_wait_ms=0)
        yield packed.pack_fetch_request(7, "mutant", version, request)
        if version >= 7:
            opening = request._replace(session_epoch=0, forgotten_topics=[(topics[1], [0])])
            yield packed.pack_fetch_request(7, "mutant", version, opening)
            yield packed.pack_fetch_request(7, "mutant", version, opening._replace(session_id=5, session_epoch=1))
        return
    for message in sample_requests(api_key, version, DAMAGED_TOPIC, RESEALED_TOPIC):
        yield codec.encode_request(message, version, 7, "mutant")


# Damage ---------------------------------------------------------------------------------------------------------------


def _flip(rng: random.Random, frame: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, frame: bytearray) -> None:
    at = rng.randrange(len(frame))
    for position in range(at, min(at + rng.choice((1, 2, 4, 8)), len(frame))):
        frame[position] = rng.choice((0x00, 0x01, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _lie(rng: random.Random, frame: bytearray) -> None:
    """Put an edge number somewhere: sooner or later into every length and count."""
    width = rng.choice((1, 2, 4))
    at = rng.randrange(max(len(frame) - width, 1))
    number = rng.choice(_EDGE_NUMBERS) & (256**width - 1)
    frame[at : at + width] = number.to_bytes(width, "big")


def _long_varint(rng: random.Random, frame: bytearray) -> None:
    at = rng.randrange(len(frame))
    frame[at:at] = rng.choice((b"\xff\xff\xff\xff\x0f", b"\xff" * 10, b"\x80" * 5, b"\x80\x80\x80\x80\x00"))


def _truncate(rng: random.Random, frame: bytearray) -> None:
    del frame[rng.randrange(len(frame)) :]


def _insert(rng: random.Random, frame: bytearray) -> None:
    at = rng.randrange(len(frame) + 1)
    frame[at:at] = rng.randbytes(rng.choice((1, 2, 4, 17, 300)))


def _remove(rng: random.Random, frame: bytearray) -> None:
    at = rng.randrange(len(frame))
    del frame[at : at + rng.choice((1, 2, 4, 9))]


def _repeat(rng: random.Random, frame: bytearray) -> None:
    at = rng.randrange(len(frame))
    piece = frame[at : at + rng.randrange(1, 40)]
    frame[at:at] = piece * rng.choice((1, 2, 50))


DAMAGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _flip, _overwrite, _overwrite, _lie, _lie, _long_varint, _truncate, _insert, _remove, _repeat,
)  # fmt: skip


def _batch_bounds(frame: Frame) -> tuple[int, int]:
    """Return where the only batch of a produce request begins and ends: its length must lead to the request's end.

    Zeros and a 2 in their places alone are not enough: timestamps, CRCs and compressed bytes have such runs, too.
    """
    for start in range(len(frame) - 61, -1, -1):
        end = start + 12 + struct.unpack_from(">i", frame, start + 8)[0]
        # After the batch stand at most the three empty tag sections of the partition, the topic and the request.
        if frame[start + 16] == 2 and frame[start : start + 8] == bytes(8) and 0 <= len(frame) - end <= 3:
            return start, end
    raise AssertionError(f"no batch in {frame.hex()}")


def _may_be_sent(frame: bytearray) -> bool:
    """Return False for what has become a request to delete a topic that is looked at in the end."""
    deletes = frame[:2] == ApiKey.DELETE_TOPICS.to_bytes(2, "big")
    return not deletes or not any(topic.encode() in frame for topic in (DAMAGED_TOPIC, RESEALED_TOPIC))


def damaged(rng: random.Random, frame: Frame) -> bytearray:
    """Return a damaged copy; of the resealed topic's batches the inside, with length and CRC made right again."""
    changed = bytearray(frame)
    if struct.unpack_from(">h", frame)[0] == ApiKey.PRODUCE and RESEALED_TOPIC.encode() in frame:
        start, end = _batch_bounds(frame)
        # From the attributes on: what the CRC covers. The length stays, so the damage must keep it.
        inside = bytearray(frame[start + 21 : end])
        for _ in range(rng.choice((1, 1, 2, 4))):
            rng.choice((_flip, _overwrite, _lie))(rng, inside)
        inside = inside[: end - start - 21].ljust(end - start - 21, b"\0")
        changed[start + 17 : end] = crc32c(bytes(inside)).to_bytes(4, "big") + inside
        return changed
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if changed:
            rng.choice(DAMAGES)(rng, changed)
    return changed


# Sending --------------------------------------------------------------------------------------------------------------


class Lane:
    """One connection at a time, with at most one damaged request whose fate is not known yet."""

    def __init__(self, address: tuple[str, int], counts: Counter[str]) -> None:
        self._address = address
        self._counts = counts
        self.socket: socket.socket | None = None
        self._received = bytearray()
        self._skip = 0
        self._number = 0
        self.sent_s = 0.0
        self._may_wait = False
        self._at_its_end = False

    def connect(self) -> socket.socket:
        self.socket = socket.create_connection(self._address, PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._received.clear()
        self._skip = 0
        return self.socket

    def send(self, rng: random.Random, frame: bytearray) -> None:
        assert self.socket is not None
        self._number = (self._number + 1) % 1_000_000
        self._may_wait = int.from_bytes(frame[:2], "big") in _MAY_WAIT
        self._at_its_end = rng.random() < 0.05
        size_bytes = len(frame)
        if self._at_its_end:
            size_bytes = rng.choice((size_bytes + rng.randrange(1, 5000), 2**20, 100 * 2**20, 2**31 - 1, -1, 0))
        probe = struct.pack(">hhih", 18, 0, 0x7A000000 + self._number, -1)
        data = struct.pack(">i", size_bytes) + frame
        if not self._at_its_end:
            data += struct.pack(">i", len(probe)) + probe
        self.sent_s = time.monotonic()
        try:
            sent = self.socket.send(data)
            if sent < len(
                data
            ):  # the kernel is short of buffers; a broker that does not read is seen as a TimeoutError
                self.socket.settimeout(PATIENCE_S)
                self.socket.sendall(data[sent:])
                self.socket.setblocking(False)
            if self._at_its_end:
                self.socket.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # the broker has closed while this was sent; reading says so as well

    def receive(self) -> str | None:
        """Return what became of the request, or None while nothing did. Closed connections are closed here too."""
        assert self.socket is not None
        try:
            data = self.socket.recv(262_144)
        except BlockingIOError:
            return None
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            return "ended" if self._at_its_end else "closed"
        if self._skip >= len(data):
            self._skip -= len(data)
            return None
        self._received += data[self._skip :] if self._skip else data
        self._skip = 0
        position = 0
        answered = False
        while len(self._received) - position >= 8:
            size_bytes, correlation_id = struct.unpack_from(">ii", self._received, position)
            if not 4 <= size_bytes < 60 * 2**20:
                raise AssertionError(f"the broker sent a response of {size_bytes} bytes")
            answered = answered or correlation_id == 0x7A000000 + self._number
            position += 4 + size_bytes
        self._skip = max(position - len(self._received), 0)
        del self._received[:position]
        return "answered" if answered and not self._at_its_end else None

    def overdue(self, now: float) -> str | None:
        """Return what to call a request that has had no answer for too long, None while there is time."""
        waited = now - self.sent_s
        if self._may_wait and not self._at_its_end and waited > _GIVE_UP_S:
            self.close()
            return "waiting"
        if waited > PATIENCE_S:
            raise AssertionError(f"no answer and no end of the connection for {waited:.1f} s")
        return None

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def run(bootstrap: str, seed: int, count: int, connections: int) -> dict[str, object]:
    """Send ``count`` damaged requests and return what became of them."""
    rng = random.Random(seed)
    requests = undamaged_requests(bootstrap)
    keys = sorted(requests)
    host, _, port = bootstrap.rpartition(":")
    counts: Counter[str] = Counter()
    per_api: Counter[int] = Counter()
    selector = selectors.DefaultSelector()
    slowest = 0.0
    sent = 0
    busy: set[Lane] = set()

    def give_work(lane: Lane) -> None:
        nonlocal sent
        if sent >= count:
            return
        if lane.socket is None:
            selector.register(lane.connect(), selectors.EVENT_READ, lane)
        key, version = keys[sent % len(keys)]
        frame = damaged(rng, rng.choice(requests[key, version]))
        while not _may_be_sent(frame):
            frame = damaged(rng, rng.choice(requests[key, version]))
        sent += 1
        per_api[key] += 1
        lane.send(rng, frame)
        busy.add(lane)

    def finished(lane: Lane, outcome: str) -> None:
        counts[outcome] += 1
        busy.discard(lane)
        give_work(lane)

    for _ in range(connections):
        give_work(Lane((host, int(port)), counts))
    checked_s = time.monotonic()
    while busy:
        for key, _ in selector.select(0.1):
            lane: Lane = key.data
            outcome = lane.receive()
            if lane.socket is None:
                selector.unregister(key.fileobj)
            if outcome is not None:
                slowest = max(slowest, time.monotonic() - lane.sent_s)
                finished(lane, outcome)
        now = time.monotonic()
        if now - checked_s > 0.1:
            checked_s = now
            for lane in list(busy):
                held = lane.socket
                outcome = lane.overdue(now)
                if outcome is not None:
                    assert held is not None
                    selector.unregister(held)
                    finished(lane, outcome)
    return {
        "sent": sent,
        "outcomes": dict(counts),
        "apis": len(per_api),
        "versions": len(keys),
        "fewest_per_api": min(per_api.values()),
        "slowest_s": round(slowest, 4),
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))

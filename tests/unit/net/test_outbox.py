"""What is put into an outbox leaves it in order, whatever the socket takes, with as few calls as it can."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from spark_kafkalite.log.segments.sending import Sending
from spark_kafkalite.net.outbox import FileEndedError, FileRange, Outbox, Piece
from tests.seeds import SEED

DATA = random.Random(1).randbytes(600_000)


class OpenFile:
    """A file of ``DATA``."""

    def __init__(self, directory: Path) -> None:
        (directory / "data").write_bytes(DATA)
        self._fileno = os.open(directory / "data", os.O_RDWR)

    def fileno(self) -> int:
        return self._fileno

    def pread(self, length: int, position: int) -> bytes:
        return os.pread(self._fileno, length, position)

    def cut(self, size_bytes: int) -> None:
        os.ftruncate(self._fileno, size_bytes)


class Taking:
    """A channel that takes as much as it is told, call by call, and then everything."""

    turn_bytes = 4 * 1024 * 1024
    unsent_bytes = 0

    def __init__(self, *takes: int | None) -> None:
        self.taken = bytearray()
        self.calls: list[tuple[str, int, bool]] = []
        self._takes = list(takes)

    def send(self, data: bytes | bytearray | memoryview, more: bool) -> int | None:
        return self._take("send", bytes(data), more)

    def send_file(self, fileno: int, position: int, count: int) -> int | None:
        return self._take("file", os.pread(fileno, count, position), False)

    def _take(self, call: str, data: bytes, more: bool) -> int | None:
        self.calls.append((call, len(data), more))
        take = self._takes.pop(0) if self._takes else len(data)
        if take is None:
            return None
        self.taken += data[:take]
        return min(take, len(data))


@pytest.fixture
def file(tmp_path: Path) -> OpenFile:
    return OpenFile(tmp_path)


def put(outbox: Outbox, *parts: Piece) -> bytes:
    """Put an answer of these parts in; return what it is on the wire."""
    wire = b"".join(
        DATA[part.position : part.position + part.length] if isinstance(part, FileRange) else bytes(part)
        for part in parts
    )
    outbox.put((list(parts), len(wire)))
    return len(wire).to_bytes(4, "big") + wire


def made(channel: Taking, room_bytes: int = 1 << 18) -> Outbox:
    return Outbox(channel, memoryview(bytearray(room_bytes)))  # type: ignore[arg-type]


def test_an_answer_with_a_batch_in_it_leaves_with_one_call(file: OpenFile) -> None:
    channel = Taking()
    outbox = made(channel)
    wire = put(outbox, b"head", FileRange(file, 7, 65_000, Sending()), b"tail") + put(outbox, b"next")
    assert outbox.flush()
    assert bytes(channel.taken) == wire
    assert channel.calls == [("send", len(wire), False)]


def test_an_empty_piece_is_none() -> None:
    channel = Taking()
    outbox = made(channel)
    wire = put(outbox, b"", b"", b"body", b"")
    assert outbox.flush()
    assert bytes(channel.taken) == wire


def test_a_large_range_is_not_copied(file: OpenFile) -> None:
    channel = Taking()
    outbox = made(channel)
    wire = put(outbox, b"head", FileRange(file, 0, 500_000, Sending()), b"tail")
    assert outbox.flush()
    assert bytes(channel.taken) == wire
    assert channel.calls == [("send", 8, True), ("file", 500_000, False), ("send", 4, False)]


def test_what_a_slow_socket_leaves_is_not_copied_again(file: OpenFile) -> None:
    channel = Taking(1000, None)
    outbox = made(channel)
    wire = put(outbox, b"head", FileRange(file, 0, 100_000, Sending()), b"tail")
    assert not outbox.flush()
    assert outbox.flush()
    assert [call for call, _, _ in channel.calls] == ["send", "file", "file", "send"]
    assert bytes(channel.taken) == wire
    # It has taken everything since.
    wire += put(outbox, b"head", FileRange(file, 0, 100_000, Sending()), b"tail")
    assert outbox.flush()
    assert bytes(channel.taken) == wire
    assert channel.calls[4:] == [("send", 100_012, False)]


def test_a_file_that_ends_too_early_is_found_out(file: OpenFile) -> None:
    channel = Taking()
    outbox = made(channel)
    put(outbox, b"head", FileRange(file, 500_000, 1000, Sending()), b"tail")
    file.cut(500_000)
    with pytest.raises(FileEndedError):
        outbox.flush()
    assert bytes(channel.taken[4:]) == b"head"


def test_whatever_the_socket_takes_the_bytes_are_the_same(file: OpenFile) -> None:
    seed = SEED
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        takes = [rng.choice((None, 1, rng.randrange(1, 300), rng.randrange(1, 400_000))) for _ in range(30)]
        channel = Taking(*takes)
        outbox = made(channel, rng.choice((64, 5000, 1 << 18)))
        wire, told, sendings = b"", 0, []
        for _ in range(rng.randrange(1, 12)):
            parts: list[Piece] = [b"head"]
            for _ in range(rng.randrange(4)):
                sending = Sending()
                sendings.append(sending)
                length = rng.choice((1, rng.randrange(1, 3000), rng.randrange(1, 300_000)))
                parts.append(FileRange(file, rng.randrange(len(DATA) - length), length, sending))
                parts.append(bytes(rng.randrange(1, 100)))
            wire += put(outbox, *parts)
            if rng.random() < 0.5:
                told += 1

                def sent(done: bool, upto: int = len(wire), taken: bytearray = channel.taken) -> None:
                    nonlocal told
                    assert done
                    assert len(taken) >= upto
                    told -= 1

                outbox.watch(sent)
            if rng.random() < 0.5:
                outbox.flush()
        for _ in range(1000):
            if outbox.flush():
                break
        assert bytes(channel.taken) == wire
        assert (outbox.unsent_bytes, outbox.sent_bytes, told) == (0, len(wire), 0)
        assert not outbox.pieces
        assert not any(map(len, sendings))

"""A loop and channels that only remember, for tests of connections: one like a socket, one as under TLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Calls that have to be made under TLS before the first byte.
HANDSHAKE_STEPS = 4


class FakeHandle:
    """A call that the loop was asked for, until it is cancelled."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def __call__(self) -> None:
        if self._callback is not None:
            self._callback()

    def cancel(self) -> None:
        self._callback = None


class FakeLoop:
    def __init__(self) -> None:
        self.now = 1000.0
        self.reader: Callable[[], None] | None = None
        self.writer: Callable[[], None] | None = None
        self.soon: list[Callable[[], None]] = []
        self.at_end: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def add_reader(self, _: int, callback: Callable[[], None]) -> None:
        self.reader = callback

    def remove_reader(self, _: int) -> None:
        self.reader = None

    def add_writer(self, _: int, callback: Callable[[], None]) -> None:
        self.writer = callback

    def remove_writer(self, _: int) -> None:
        self.writer = None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now + delay_s, callback))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback in due:
            callback()

    def call_soon(self, callback: Callable[[], None]) -> FakeHandle:
        handle = FakeHandle(callback)
        self.soon.append(handle)
        return handle

    def call_at_end_of_pass(self, callback: Callable[[], None]) -> None:
        self.at_end.append(callback)

    def run_pass(self) -> None:
        """Call what was to be called in the next pass and at its end, and nothing that this adds."""
        due, self.soon = self.soon, []
        for callback in due:
            callback()
        due, self.at_end = self.at_end, []
        for callback in due:
            callback()

    def run_soon(self) -> None:
        while self.soon or self.at_end:
            (self.soon or self.at_end).pop(0)()


class FakeChannel:
    """``room`` bytes can be sent before it would block."""

    # Descriptors of files to send begin here, beyond those of any process: a file is full of the byte that follows.
    FILES = 1 << 30
    turn_bytes = 4 * 1024 * 1024
    unsent_bytes = 0
    needs_handshake = False
    has_buffered = False
    read_needs_write = False
    write_needs_read = False

    def __init__(self) -> None:
        self.incoming: list[bytes] = []
        self.sent = bytearray()
        self.calls: list[str] = []
        self.room = 1 << 30
        self.closed = False

    @property
    def readable(self) -> bool:
        """Whether the system would say so."""
        return bool(self.incoming)

    @property
    def writable(self) -> bool:
        return self.room > 0

    def fileno(self) -> int:
        return 99

    def handshake(self) -> bool:
        return True

    def recv_into(self, buffer: memoryview, beyond: memoryview | None = None) -> int | None:
        if not self.incoming:
            return None
        data = self.incoming.pop(0)
        cut = min(len(buffer), len(data))
        buffer[:cut] = data[:cut]
        if beyond is not None:
            beyond[: len(data) - cut] = data[cut:]
        return len(data)

    def send(self, data: Any, more: bool) -> int | None:
        self.calls.append("send+" if more else "send")
        return self._take(bytes(data))

    def send_file(self, fileno: int, position: int, count: int) -> int | None:
        self.calls.append("file")
        return self._take(bytes([fileno - self.FILES]) * count)

    def _take(self, data: bytes) -> int | None:
        taken = data[: self.room]
        self.room -= len(taken)
        self.sent += taken
        return len(taken) or None

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class RecordChannel(FakeChannel):
    """What arrives is one record a piece: a call decrypts one and gives out what fits, and keeps the rest.

    Every third call to receive waits until it may send, and every third to send until something has arrived, as when
    keys change; so does every other step of the handshake. ``readable`` and ``writable`` say which event there is.

    The last byte of what a call to send takes is held until the next call, or ``flush``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._decrypted = self._kept = b""
        self._steps = 0
        self._receives = 0
        self._sends = 0
        self.read_needs_write = False
        self.write_needs_read = False

    @property
    def readable(self) -> bool:
        """Whether the socket has something: a record, or what sending or the handshake waits for."""
        return bool(self.incoming) or self.write_needs_read or (self.needs_handshake and not self.read_needs_write)

    @property
    def writable(self) -> bool:
        return self.room > 0 or self.read_needs_write

    @property
    def needs_handshake(self) -> bool:  # type: ignore[override]
        return self._steps < HANDSHAKE_STEPS

    @property
    def has_buffered(self) -> bool:  # type: ignore[override]
        return bool(self._decrypted)

    def handshake(self) -> bool:
        self._steps += 1
        self.read_needs_write = self.needs_handshake and self._steps % 2 == 1
        return not self.needs_handshake

    def recv_into(self, buffer: memoryview, beyond: memoryview | None = None) -> int | None:
        assert not self.needs_handshake
        # What sending waited for is read here as well.
        self.read_needs_write = self.write_needs_read = False
        if not self._decrypted and self.incoming:
            self._receives += 1
            if self._receives % 3 == 1:
                self.read_needs_write = True
                return None
            self._decrypted = self.incoming.pop(0)
            if not self._decrypted:
                return 0
        if not self._decrypted:
            return None
        given, self._decrypted = self._decrypted[: len(buffer)], self._decrypted[len(buffer) :]
        buffer[: len(given)] = given
        return len(given)

    def send(self, data: Any, more: bool) -> int | None:
        return None if self._waits() else super().send(data, more)

    def send_file(self, fileno: int, position: int, count: int) -> int | None:
        return None if self._waits() else super().send_file(fileno, position, count)

    def _waits(self) -> bool:
        assert not self.needs_handshake
        self._sends += 1
        self.write_needs_read = self._sends % 3 == 2
        return self.write_needs_read or not self.flush()

    @property
    def unsent_bytes(self) -> int:  # type: ignore[override]
        return len(self._kept)

    def _take(self, data: bytes) -> int | None:
        taken = super()._take(data)
        if taken:
            self._kept = bytes(self.sent[-1:])
            self.room += 1
            del self.sent[-1:]
        return taken

    def flush(self) -> bool:
        if self._kept and self.room:
            self.room -= 1
            self.sent += self._kept
            self._kept = b""
        return not self._kept

"""Responses that one connection has yet to send, in order, as bytes and ranges of files.

What comes next is gathered in one place and leaves with one call, so that the reader is woken once for all of it. With
a call for each piece it is often woken for each. A wake-up costs the reader more than copying a batch costs here. Large
ranges leave with ``sendfile``, and so do all while the socket takes less than it is offered: what it leaves would be
copied again. A range holds its segment's file open until it is sent or dropped. Sending stops when the socket takes no
more, and after a turn's worth of bytes, so that one fast reader does not keep the others waiting.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from spark_kafkalite.log.segments.sending import Sending
from spark_kafkalite.net.channel import Channel
from spark_kafkalite.platform_calls import NOWAIT
from spark_kafkalite.wire.frame import LENGTH

# What is gathered at most: for a socket that takes it all, and for one that has not.
ROOM_BYTES: Final = 256 * 1024
_ROOM_OF_SLOW_BYTES: Final = 64 * 1024
# A range up to this size is copied.
_COPIED_RANGE_BYTES: Final = 128 * 1024


class FileLike(Protocol):
    """What a range needs of its file."""

    def fileno(self) -> int: ...

    def pread(self, length: int, position: int, /) -> bytes: ...


class Suspects(Protocol):
    """Receives what could not be sent."""

    def suspect(self, offset: int, /) -> None: ...


class FileRange:
    """Bytes of a file to be sent; holds the file open. Position and length move while it is sent.

    From when it is queued until it is sent or dropped it is counted with its segment (``log.segments.sending``).
    """

    __slots__ = ("_cuts", "_offset", "_sending", "_suspects", "file", "is_cut", "length", "position")

    def __init__(
        self,
        file: FileLike,
        position: int,
        length: int,
        sending: Sending,
        suspects: Suspects | None = None,
        offset: int = 0,
    ) -> None:
        """``suspects`` receives ``offset``, which was asked for, when the bytes cannot be read."""
        self._suspects = suspects
        self._offset = offset
        self.file = file
        self.position = position
        self.length = length
        # Whether the file has been truncated to before the range's end, and may hold something else there.
        self.is_cut = False
        self._sending = sending
        self._cuts = sending.cuts

    def read(self) -> bytes | None:
        """Return the bytes; None where they are not there, or the file has been cut since the range was found: sending
        it raises the error."""
        if self._cuts != self._sending.cuts:
            return None
        try:
            data = self.file.pread(self.length, self.position)
        except OSError:
            return None
        return data if len(data) == self.length else None

    def copy_into(self, room: memoryview) -> bool:
        """Copy what is to be sent; return whether it is in memory. Sending it raises the error if it is missing."""
        try:
            return not self.is_cut and os.preadv(self.file.fileno(), (room,), self.position, NOWAIT) == self.length
        except OSError:
            return False

    def could_not_be_read(self) -> None:
        """Have it known that bytes are missing, unless a truncation has cut them off."""
        if self._suspects is not None and self._cuts == self._sending.cuts:
            self._suspects.suspect(self._offset)

    def begin(self) -> None:
        """Have it counted."""
        sending = self._sending
        self.is_cut = self._cuts != sending.cuts
        sending.begin(self)

    def end(self) -> None:
        """Have it counted no longer."""
        self._sending.end(self)


Piece = bytes | bytearray | memoryview | FileRange
# An answer from this size on is sent where it lies.
_LARGE_BYTES = 64 * 1024
# Gets whether the bytes were sent; if not, they were dropped.
OnSent = Callable[[bool], None]
# Without the length in front. Pieces come with the sum of their lengths; the first one is bytes, the response's header.
Response = bytes | tuple[list[Piece], int]


def as_response(body: bytearray) -> Response:
    """Return an encoded answer in the form in which it is sent, without a copy when it is large."""
    return bytes(body) if len(body) < _LARGE_BYTES else ([b"", body], len(body))


class FileEndedError(Exception):
    """A file is shorter than the range to be sent, or has been: its response cannot be completed."""


class Outbox:
    """The unsent pieces of one channel. ``unsent_bytes`` counts memory without ranges of files, ``sent_bytes`` all."""

    __slots__ = (
        "_channel",
        "_is_slow",
        "_put_bytes",
        "_room",
        "_turn_bytes",
        "_watched",
        "pieces",
        "sent_bytes",
        "unsent_bytes",
    )

    def __init__(self, channel: Channel, room: memoryview) -> None:
        """``room`` is where pieces are gathered, ROOM_BYTES; all outboxes of one loop may share it."""
        self._channel = channel
        self._turn_bytes = channel.turn_bytes
        self._room = room
        # Whether the socket has not taken what it was offered, since all was sent the last time.
        self._is_slow = False
        # For others to look at; asked for with every request, when a method would cost as much as the rest.
        self.pieces: deque[Piece] = deque()
        self.unsent_bytes = 0
        self.sent_bytes = 0
        # All that was ever put in, and who wants to know when that much is sent; in this order.
        self._put_bytes = 0
        self._watched: deque[tuple[int, OnSent]] = deque()

    def put(self, response: Response) -> None:
        """Queue a response, with its length in front; an empty one is none."""
        pieces = self.pieces
        if isinstance(response, bytes):
            if response:
                pieces.append(LENGTH.pack(len(response)) + response)
                self.unsent_bytes += 4 + len(response)
                self._put_bytes += 4 + len(response)
            return
        parts, length = response
        self._put_bytes += 4 + length
        head = LENGTH.pack(length) + parts[0]  # type: ignore[operator]
        pieces.append(head)
        self.unsent_bytes += len(head)
        for part in parts[1:]:
            if isinstance(part, FileRange):
                part.begin()
            elif part:
                self.unsent_bytes += len(part)
            else:
                continue  # what nothing can be sent of would never leave
            pieces.append(part)

    def put_framed(self, frames: Iterable[bytes]) -> None:
        """Queue bytes that have their length in front already."""
        for frame in frames:
            self.pieces.append(frame)
            self.unsent_bytes += len(frame)
            self._put_bytes += len(frame)

    def watch(self, on_sent: OnSent) -> None:
        """Call back when all that has been put in until now is sent, or dropped."""
        self._watched.append((self._put_bytes, on_sent))
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        while self._watched and self._watched[0][0] <= self.sent_bytes:
            self._watched.popleft()[1](True)

    def clear(self) -> None:
        """Drop everything."""
        for piece in self.pieces:
            if isinstance(piece, FileRange):
                piece.end()
        self.pieces.clear()
        self.unsent_bytes = 0
        watched, self._watched = self._watched, deque()
        for _, on_sent in watched:
            on_sent(False)

    def flush(self) -> bool:
        """Send what the socket takes now; return whether that was all.

        Raises OSError when the peer is gone, FileEndedError when a file is too short.
        """
        pieces = self.pieces
        turn_bytes = 0
        while pieces:
            sent = self._send_some()
            if sent is None:
                self._is_slow = True
                return False
            turn_bytes += sent
            self.sent_bytes += sent
            self._take_out(sent)
            if self._watched:
                self._tell_watchers()
            if turn_bytes >= self._turn_bytes and pieces:
                return False
        self._is_slow = False
        return not self._channel.unsent_bytes or self._channel.flush()

    def _send_some(self) -> int | None:
        """Send a part of what is queued; return how much."""
        pieces = self.pieces
        count, size_bytes = self._gather() if len(pieces) > 1 else (1, 0)
        if count > 1:
            sent = self._channel.send(self._room[:size_bytes], len(pieces) > count)
            if sent is not None and sent < size_bytes:
                self._is_slow = True
            return sent
        piece = pieces[0]
        return self._send_range(piece) if isinstance(piece, FileRange) else self._channel.send(piece, len(pieces) > 1)

    def _gather(self) -> tuple[int, int]:
        """Copy what comes next into the room; return how many pieces, and how many bytes."""
        room, is_slow = self._room, self._is_slow
        room_bytes = min(len(room), _ROOM_OF_SLOW_BYTES) if is_slow else len(room)
        count = size_bytes = 0
        for piece in self.pieces:
            if isinstance(piece, FileRange):
                end = size_bytes + piece.length
                if is_slow or piece.length > _COPIED_RANGE_BYTES or end > room_bytes:
                    break
                if not piece.copy_into(room[size_bytes:end]):
                    break
            else:
                end = size_bytes + len(piece)
                if end > room_bytes:
                    break
                room[size_bytes:end] = piece
            size_bytes = end
            count += 1
        return count, size_bytes

    def _send_range(self, piece: FileRange) -> int | None:
        if piece.is_cut:
            raise FileEndedError("a log was truncated to before the range that was to be sent")
        try:
            sent = self._channel.send_file(piece.file.fileno(), piece.position, piece.length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            piece.could_not_be_read()
            raise FileEndedError("a log file could not be read in the range that was to be sent") from error
        if sent == 0:
            piece.could_not_be_read()
            raise FileEndedError("a log file ended before the range that was to be sent")
        return sent

    def _take_out(self, sent: int) -> None:
        """Take out what has been sent."""
        pieces = self.pieces
        while sent:
            piece = pieces[0]
            if isinstance(piece, FileRange):
                taken = min(sent, piece.length)
                piece.position += taken
                piece.length -= taken
                if piece.length == 0:
                    pieces.popleft()
                    piece.end()
            else:
                taken = min(sent, len(piece))
                self.unsent_bytes -= taken
                if taken == len(piece):
                    pieces.popleft()
                else:
                    pieces[0] = memoryview(piece)[taken:]
            sent -= taken

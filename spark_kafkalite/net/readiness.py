"""Whether a connection can read or write now, and which events of its socket the loop watches.

Of a plain socket reading waits until it is readable and writing until it is writable. Under TLS each may wait for the
other's event, and bytes may be here for which no event comes (``channel``). Only this file knows of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spark_kafkalite.net.channel import Channel


def _nobody() -> None:
    """Takes the place of the object that was called back."""


class Readiness:
    """Calls back when a channel may have something to read, or room to write, as long as that is wanted."""

    __slots__ = (
        "_channel",
        "_is_closed",
        "_loop",
        "_read",
        "_read_scheduled",
        "_watched",
        "_write",
        "reading",
        "writing",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        read: Callable[[], None],
        write: Callable[[], None],
    ) -> None:
        """``read`` is wanted from the start, ``write`` is not. Neither raises."""
        self._loop = loop
        self._channel = channel
        self._read = read
        self._write = write
        # What is wanted, and what the loop watches for: readable, writable.
        self.reading = True
        self.writing = False
        self._watched = (False, False)
        self._read_scheduled = False
        self._is_closed = False
        self.update()

    def set_reading(self, reading: bool) -> None:
        """Begin or cease to want to read."""
        if reading == self.reading or self._is_closed:
            return
        self.reading = reading
        self.update()
        if reading and self._channel.has_buffered:
            self.read_soon()

    def set_writing(self, writing: bool) -> None:
        """Begin or cease to want to write; to be called after each call to send that has not sent all."""
        if (not writing and not self.writing) or self._is_closed:
            return
        self.writing = writing
        self.update()

    def update(self) -> None:
        """Watch for what the channel's last call waits for."""
        channel = self._channel
        wanted = (
            (self.reading and not channel.read_needs_write) or (self.writing and channel.write_needs_read),
            (self.writing and not channel.write_needs_read) or (self.reading and channel.read_needs_write),
        )
        watched = self._watched
        if wanted == watched:
            return
        self._watched = wanted
        loop, fileno = self._loop, channel.fileno()
        if wanted[0] != watched[0]:
            if wanted[0]:
                loop.add_reader(fileno, self._on_readable)
            else:
                loop.remove_reader(fileno)
        if wanted[1] != watched[1]:
            if wanted[1]:
                loop.add_writer(fileno, self._on_writable)
            else:
                loop.remove_writer(fileno)

    def read_soon(self) -> None:
        """Read in the next pass of the loop, without an event of the socket."""
        if not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_soon(self._scheduled_read)

    def close(self) -> None:
        """Watch for nothing any more, before the channel is closed; let go of the object that was called back."""
        self.reading = self.writing = False
        self.update()
        self._is_closed = True
        self._read = self._write = _nobody

    def _scheduled_read(self) -> None:
        self._read_scheduled = False
        if self.reading:
            self._read()
            self.update()

    def _on_readable(self) -> None:
        if self.writing and self._channel.write_needs_read:
            self._write()
            self.update()
        if self.reading:
            self._read()

    def _on_writable(self) -> None:
        if self.reading and self._channel.read_needs_write:
            self._read()
            self.update()
        if self.writing:
            self._write()

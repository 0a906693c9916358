"""A listening socket of an event loop, and how it accepts connections.

A pass of the loop accepts a bounded number. If file descriptors run out, the socket stays readable, and the loop must
not spin. So each listening socket keeps one descriptor in reserve. When ``accept`` fails with EMFILE, it frees that
descriptor, accepts the waiting connection, and closes it: the client gets an error instead of waiting.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

# Connections accepted in one pass of the loop: one takes up to 0.1 ms, and everything else waits meanwhile.
ACCEPTS_PER_PASS: Final = 16
_PAUSE_S: Final = 1.0
# accept(2) also reports errors of the new connection.
_TRANSIENT: Final = (errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH)
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# An accepted socket, and the address of its peer.
OnAccepted = Callable[[socket.socket, tuple[str, int]], None]
# A level of logging, and why no connection could be accepted.
OnProblem = Callable[[int, OSError], None]


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen yet; an empty host is every interface. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.getaddrinfo(host or None, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound = socket.socket(found[0][0], socket.SOCK_STREAM)
    try:
        # So that a killed process can start on the same port at once.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind(found[0][4])
    except OSError:
        bound.close()
        raise
    return bound


class ListeningSocket:
    """Accepts connections of one bound socket, from :meth:`start` until :meth:`close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bound: socket.socket,
        on_accepted: OnAccepted,
        on_problem: OnProblem,
        delay_s: Callable[[], float] | None = None,
    ) -> None:
        """Take over ``bound``.

        ``on_problem`` may be called often while descriptors are missing. ``delay_s`` is asked before each connection
        for how long none may be accepted; meanwhile connections wait in the kernel.
        """
        self._loop = loop
        self._bound = bound
        self._on_accepted = on_accepted
        self._on_problem = on_problem
        self._delay_s = delay_s
        self._spare: int | None = _open_spare()
        self._is_closed = False

    @property
    def port(self) -> int:
        """The port to which the socket is bound."""
        return int(self._bound.getsockname()[1])

    def start(self, backlog: int) -> None:
        """Listen and accept. Raises OSError when another program's connection has taken the bound port."""
        self._bound.listen(backlog)
        self._loop.add_reader(self._bound.fileno(), self._accept_some)

    def close(self) -> None:
        """Accept nothing more. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._bound.fileno())
        self._bound.close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _accept_some(self) -> None:
        for _ in range(ACCEPTS_PER_PASS):
            delay_s = 0.0 if self._delay_s is None else self._delay_s()
            if delay_s > 0:
                self._pause(delay_s)
                return
            try:
                connected, address = self._bound.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _TRANSIENT:
                    continue
                is_out = error.errno in _OUT_OF_DESCRIPTORS
                self._on_problem(logging.WARNING if is_out else logging.ERROR, error)
                if not (is_out and self._turn_away()):
                    self._pause()
                return
            self._on_accepted(connected, address)
            if self._is_closed:
                return

    def _turn_away(self) -> bool:
        """Use the reserved descriptor to accept and close one connection; return whether that was possible."""
        if self._spare is None:
            self._spare = _open_spare()
            return False
        os.close(self._spare)
        self._spare = None
        try:
            connected, _ = self._bound.accept()
            connected.close()
        except OSError:
            return False
        finally:
            self._spare = _open_spare()
        return True

    def _pause(self, seconds: float = _PAUSE_S) -> None:
        """Try again later. Otherwise the loop would spin, because the socket stays readable."""
        self._loop.remove_reader(self._bound.fileno())
        self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._bound.fileno(), self._accept_some)


def _open_spare() -> int | None:
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

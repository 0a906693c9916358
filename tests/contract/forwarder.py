"""A TCP forwarder whose connections a test cuts: the server behind it goes on living."""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import partial
from types import TracebackType
from typing import Self

from tests.patience import PATIENCE_S


class Forwarder:
    """Listens on a loopback port (``address``) and forwards to another; ``cut`` ends and refuses connections.

    ``refused`` counts connections that were refused, ``answers`` pieces of answers that were passed on.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open = True
        # Connections that are to be accepted, and nothing of them forwarded.
        self.swallows = 0
        # How many pieces of a connection's answers are passed on; None for all.
        self.passes: int | None = None
        self.refused = 0
        self.answers = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        with self._lock:
            self._open = False
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def mend(self) -> None:
        with self._lock:
            self._open = True

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._open:
                    self.refused += 1
                    client.close()
                    continue
                if self.swallows:
                    self.swallows -= 1
                    self._sockets.append(client)
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._target_port))
                except OSError:  # there is no server at present
                    client.close()
                    continue
                self._sockets += (client, server)
            for copy in (partial(self._copy, client, server), partial(self._copy, server, client, answers=True)):
                thread = threading.Thread(target=copy, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _copy(self, source: socket.socket, target: socket.socket, answers: bool = False) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self.passes is not None and passed >= self.passes:
                    continue
                target.sendall(data)
                passed += 1
                self.answers += answers
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE_S)

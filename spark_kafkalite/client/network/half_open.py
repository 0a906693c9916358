"""The connections that a client is opening: while a broker is silent they have no owner, and the client's end closes
them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


class HalfOpen:
    """Those of one client. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: set[_Closable] = set()
        self._closed = False

    @contextlib.contextmanager
    def holding(self, connection: _Closable) -> Iterator[None]:
        """Have ``close()`` close the connection too, until the block ends; one that comes later is closed at once."""
        with self._lock:
            self._connections.add(connection)
            if self._closed:
                connection.close()
        try:
            yield
        finally:
            with self._lock:
                self._connections.discard(connection)

    def close(self) -> None:
        """Close what is being opened now, and will be; the threads that open it get their errors."""
        with self._lock:
            self._closed = True
            for connection in self._connections:
                connection.close()

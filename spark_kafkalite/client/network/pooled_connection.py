"""A connection for short requests: opened on demand, shared by threads in turn, replaced when it breaks.

A broker may close an idle connection without the client's notice. If a request fails on such a connection, it is sent
once more on a new one. So every request here must be safe to repeat; the clients' requests are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from spark_kafkalite.client.client_config import ClientConfig
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import BrokerUnreachable

OpenConnection = Callable[[str, int, Deadline], BrokerConnection]
"""Opens a connection to host and port, with the settings of a client."""


class PooledConnection:
    """The way to one address."""

    def __init__(
        self, host: str, port: int, config: ClientConfig, clock: Clock, open_connection: OpenConnection
    ) -> None:
        self.host = host
        self.port = port
        self._config = config
        self._clock = clock
        self._open_connection = open_connection
        self._lock = threading.Lock()
        self._connection: BrokerConnection | None = None
        self._used_s = 0.0
        self._closed = False

    def request(self, api_key: int, message: Any, deadline: Deadline, opened_by: Deadline | None = None) -> Any:
        """Send one request; a connection that broke while idle is replaced once.

        A new connection must be open by ``opened_by``, or the deadline.
        """
        if not self._lock.acquire(timeout=max(0.001, deadline.left_s())):
            raise BrokerUnreachable(f"{self.host}:{self.port}: other requests to it took all of the time")
        try:
            reused = self._connection is not None and not self._connection.closed and not self._is_stale()
            try:
                return self._open(opened_by or deadline).request(api_key, message, deadline)
            except BrokerUnreachable:
                if not reused or deadline.passed() or self._closed:
                    raise
                return self._open(opened_by or deadline).request(api_key, message, deadline)
        finally:
            self._used_s = self._clock.monotonic_s()
            self._lock.release()

    def _is_closed(self) -> bool:
        return self._closed

    def _is_stale(self) -> bool:
        idle_ms = self._config.connections_max_idle_ms
        return idle_ms >= 0 and (self._clock.monotonic_s() - self._used_s) * 1000 > idle_ms

    def _open(self, deadline: Deadline) -> BrokerConnection:
        connection = self._connection
        if connection is not None and not connection.closed and self._is_stale():
            connection.close()
        if connection is None or connection.closed:
            if self._closed:
                raise BrokerUnreachable(f"{self.host}:{self.port}: the client has been closed")
            connection = self._connection = self._open_connection(self.host, self.port, deadline)
            # close() may have run while the connection was being opened.
            if self._is_closed():
                connection.close()
        return connection

    def close(self) -> None:
        """Close it for good, from any thread."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.close()

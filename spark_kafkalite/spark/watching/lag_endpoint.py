"""A small HTTP server in the application for the lag of its queries: ``/metrics`` for Prometheus, ``/lag`` as JSON.

It serves few requests at once and for a short time each. It has no authentication. It ends with the Spark session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from socketserver import TCPServer
from typing import Any, Final

from spark_kafkalite.errors import ConfigError

_MOST_REQUESTS: Final = 4
_REQUEST_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.5


class LagEndpoint:
    """Serves pages until ``ended`` returns True. ``pages``: by path, the content type and a function for the text."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, tuple[str, Callable[[], str]]],
        ended: Callable[[], bool],
    ) -> None:
        """``port`` 0 takes a free one. Raises ConfigError where it cannot listen."""
        try:
            self._server = _LagServer((host, port), pages)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot serve the lag of queries at {host}:{port}: {error}; give another host or port (0 takes a free "
                "port)"
            ) from error
        self._ended = ended
        self.address: tuple[str, int] = (host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._serve, name="kafkalite-lag-endpoint", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._server:
            while not self._ended():
                self._server.handle_request()


class _LagServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Of handle_request().
    timeout = _LOOK_S

    def __init__(self, address: tuple[str, int], pages: Mapping[str, tuple[str, Callable[[], str]]]) -> None:
        self.pages = pages
        self._free = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__(address, _LagHandler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks for the host's name.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Ignore a client that closed its connection."""


class _LagHandler(BaseHTTPRequestHandler):
    server: _LagServer
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        kind, page = self.server.pages.get(self.path.partition("?")[0], ("", None))
        if page is None:
            self.send_error(404, explain=f"there are {' and '.join(self.server.pages)}")
            return
        body = page().encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The application's standard error is not ours."""

"""The other end of :mod:`bench.raw_source` and :mod:`bench.raw_sink`: a process with a thread for each connection."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable


def serve(handle: Callable[[socket.socket, int], None]) -> None:
    """Print the port, and have every connection handled, with its number from 1 on, until standard input ends."""
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)

    def accept() -> None:
        number = 0
        while True:
            sock, _ = server.accept()
            number += 1
            threading.Thread(target=handle, args=(sock, number), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()

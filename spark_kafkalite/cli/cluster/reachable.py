"""Whether a process listens at a broker's address."""

from __future__ import annotations

import socket
from typing import Final

_TIMEOUT_S: Final = 3.0


def can_connect(host: str, port: int) -> bool:
    """Return whether a connection can be opened there within three seconds."""
    try:
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
    except OSError:
        return False
    return True

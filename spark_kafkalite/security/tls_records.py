"""How TLS is recognised by its first bytes: the only part of TLS that clients without it load."""

from __future__ import annotations

from typing import Final

_ALERT: Final = 0x15
_HANDSHAKE: Final = 0x16


def is_tls(first_bytes: bytes) -> bool:
    """Return whether an answer that begins with these bytes is one of TLS: an alert, or a handshake."""
    return len(first_bytes) >= 2 and first_bytes[0] in (_ALERT, _HANDSHAKE) and first_bytes[1] == 3

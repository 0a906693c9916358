"""The values of records: each has a name of its own, and bytes that follow from it, so that a change is seen."""

from __future__ import annotations

import hashlib

_LONGEST_BYTES = 600
# Names of values that are large, so that the copy of a partition takes its time.
BALLAST = "ballast"
BALLAST_BYTES = 64 << 10


def payload_of(name: str) -> bytes:
    """Return a value's bytes: its name, again and again, up to a size of its own; so does ``ChaosProducer.java``."""
    unit = f"{name} ".encode()
    size = BALLAST_BYTES if name.startswith(BALLAST) else len(unit) + sum(unit) * 7 % _LONGEST_BYTES
    return (unit * (size // len(unit) + 1))[:size]


def name_of(payload: bytes | None) -> str:
    """Return a value's name; of bytes that are no value a name that nobody has sent."""
    if payload is None:
        return "?none"
    name = payload.split(b" ", 1)[0].decode("ascii", "replace")
    return name if payload == payload_of(name) else f"?{hashlib.sha256(payload).hexdigest()[:12]}"

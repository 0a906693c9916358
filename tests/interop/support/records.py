"""The records that clients send each other in the interop tests, and what a reader says of one."""

from __future__ import annotations

import time
from typing import NamedTuple

Header = tuple[str, bytes | None]


class Sent(NamedTuple):
    """A record as a producer is given it."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...] = ()


class Read(NamedTuple):
    """A record as a consumer returns it."""

    offset: int
    is_append_time: bool
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def sample_records(client: str = "") -> list[Sent]:
    """Return records with everything that a record may have, and enough plain ones for several batches.

    kafka-python and aiokafka take no record that has neither key nor value.
    """
    now_ms = time.time_ns() // 1_000_000
    every_byte = bytes(range(256))
    return [
        Sent(None, b"", now_ms),
        Sent(b"", b"x", now_ms + 1),
        Sent(b"tombstone", None, now_ms - 86_400_000),
        Sent(b"" if client in ("kafka-python", "aiokafka") else None, None, now_ms),
        Sent(every_byte, every_byte * 30, now_ms, (("trace", b"1"), ("trace", b""), ("größe", every_byte))),
        *(
            Sent(b"key-%d" % (number % 7), b"value %06d " % number + b"ab" * (number % 90), now_ms + number)
            for number in range(400)
        ),
        Sent(b"last", b"\x00", now_ms - 1, (("end", b"yes"),)),
    ]


def expected(records: list[Sent]) -> list[Read]:
    """Return what a reader finds in a partition that only these records were sent to, in a topic with create time."""
    return [
        Read(offset, False, record.timestamp_ms, record.key, record.value, record.headers)
        for offset, record in enumerate(records)
    ]

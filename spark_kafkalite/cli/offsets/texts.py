"""Reads option values that several commands share: places and times in a log, numbers of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

from spark_kafkalite.model import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from spark_kafkalite.times import moment_ms

_PLACES: Final = {
    "latest": LATEST_TIMESTAMP,
    "earliest": EARLIEST_TIMESTAMP,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL_TIMESTAMP,
    "latest-tiered": LATEST_TIERED_TIMESTAMP,
}


def parse_time(text: str, option: str) -> int:
    """Return a time as milliseconds since the epoch, or one of Kafka's negative numbers. Raises UsageError."""
    word = text.strip().lower()
    if word in _PLACES:
        return _PLACES[word]
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return moment_ms(text)
    except ValueError:
        raise click.UsageError(
            f"{option} {text}: neither {', '.join(_PLACES)}, nor milliseconds since 1970, nor a date and time of 1970 "
            "or later, such as 2026-01-31T12:00:00Z"
        ) from None


def parse_partitions(text: str, option: str) -> set[int]:
    """Return the numbers of '0,2,5-7'. Raises UsageError, which names ``option``."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            found.update(_inclusive(int(first), int(last) if dash else int(first)))
    except ValueError:
        raise click.UsageError(f"{option} {text}: not of the form 0,2 or 0-3") from None
    return found


def _inclusive(first: int, last: int) -> Iterable[int]:
    if not 0 <= first <= last <= 2**31 - 1 or last - first > 100_000:
        raise ValueError((first, last))
    return range(first, last + 1)

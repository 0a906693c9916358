"""Compares what was acknowledged, what the log holds and what readers of every kind have seen of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

At = tuple[int, int]  # partition, offset
Row = tuple[int, int, bytes]  # partition, offset, value
_NAMED: Final = 3


def wrong_in_log(acknowledged: Mapping[bytes, At], log: Iterable[Row]) -> list[str]:
    """Say where the log does not hold each acknowledged value once, where it was said to be, and nothing else.

    A negative offset of an acknowledged value stands for one that the producer was not told.
    """
    places: dict[bytes, list[At]] = {}
    for partition, offset, value in log:
        places.setdefault(value, []).append((partition, offset))
    lost = [value for value in acknowledged if value not in places]
    several = [(value, found) for value, found in places.items() if len(found) > 1]
    unknown = [(value, found) for value, found in places.items() if value not in acknowledged]
    elsewhere = [
        (value, (partition, offset), places[value])
        for value, (partition, offset) in acknowledged.items()
        if value in places and (partition != places[value][0][0] or offset not in (-1, places[value][0][1]))
    ]
    return [
        *_told("acknowledged and not in the log", lost),
        *_told("in the log more than once", several),
        *_told("in the log without an acknowledgement", unknown),
        *_told("elsewhere than acknowledged", elsewhere),
    ]


def wrong_in_copy(name: str, log: Mapping[At, bytes], rows: Iterable[Row], *, each_once: bool = True) -> list[str]:
    """Say where rows are not the records of the log, each of them, and none again if ``each_once``."""
    counts: Counter[At] = Counter()
    other = []
    for partition, offset, value in rows:
        counts[partition, offset] += 1
        if log.get((partition, offset)) != value:
            other.append((partition, offset, value))
    missing = [at for at in log if at not in counts]
    several = [at for at, count in counts.items() if each_once and count > 1]
    return [
        *_told(f"{name}: not there", missing),
        *_told(f"{name}: there more than once", several),
        *_told(f"{name}: not what the log holds there", other),
    ]


def _told(what: str, found: list[object] | list[bytes]) -> Iterator[str]:
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        yield f"{what}: {', '.join(map(repr, found[:_NAMED]))}{more}"

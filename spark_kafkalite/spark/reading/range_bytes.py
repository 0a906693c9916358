"""Bytes of ranges, for the limit of a batch (``trigger_limits``) and the split into tasks (``maxBytesPerPartition``).

Bytes are those of the log: compressed, with everything that belongs to a batch, as files of other sources count. Kafka
does not report them for a range of offsets. So they are measured at a few places (a *sample* is the result of a short
fetch), and estimated evenly in between. This is exact for a range that one sample holds, and close if records have
about the same size everywhere. Otherwise it is as good as PLACES samples of 64 KB are. So both limits are soft. Pure
but for the samples, which a function of the caller fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange, Offsets, cut

if TYPE_CHECKING:
    from spark_kafkalite.client.consume.log_samples import LogSample

Sampler = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, "LogSample"]]
"""Returns samples of the logs from these offsets on; leaves out offsets that cannot be read."""

# Samples of one range; each is a request to the leaders, and at least a batch of every partition.
PLACES: Final = 4
# Of an offset, where no sample at all could be taken: a throttled client gets empty answers.
_ASSUMED_BYTES: Final = 1024.0


class RangeBytes:
    """How the bytes of one range are spread: stretches one after the other, each even in itself."""

    def __init__(self, start_offset: int, end_offset: int, stretches: Sequence[tuple[int, float]]) -> None:
        """``stretches`` are (first offset, bytes of an offset), in order; what is before the first one is like it."""
        self._start_offset = start_offset
        inner = [first for first, _ in stretches[1:]]
        self._stretches = [
            (first, until, bytes_each)
            for first, until, (_, bytes_each) in zip(
                (start_offset, *inner), (*inner, end_offset), stretches, strict=True
            )
        ]

    @property
    def size_bytes(self) -> float:
        """Bytes of the whole range."""
        return sum((until - first) * bytes_each for first, until, bytes_each in self._stretches)

    def offset_at(self, size_bytes: float) -> int:
        """Return the offset up to which the range takes no more than these bytes."""
        offset = self._start_offset
        for first, until, bytes_each in self._stretches:
            size_of_stretch = (until - first) * bytes_each
            if size_of_stretch > size_bytes:
                return first + int(size_bytes / bytes_each)
            size_bytes -= size_of_stretch
            offset = until
        return offset


def measured(
    sampler: Sampler,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    places: int = PLACES,
    begins: Mapping[TopicPartition, LogSample] | None = None,
) -> dict[TopicPartition, RangeBytes]:
    """Return the bytes of ranges (first offset, end offset), which are not empty.

    ``begins`` are samples of their first offsets, where the caller has them. A range that no sample could be taken of
    is taken to be like the others.
    """
    samples = {tp: [begin] if begins and (begin := begins.get(tp)) else [] for tp in ranges}
    for number in range(1 if begins else 0, places):
        at: Offsets = {}
        for tp, (start, end) in ranges.items():
            place = start + (end - start) * number // places
            known_until = samples[tp][-1].end_offset if samples[tp] else start
            if max(place, known_until) < end:
                at[tp] = max(place, known_until)
        for tp, sample in (sampler(at) if at else {}).items():
            samples[tp].append(sample)
    every = [sample for of_one in samples.values() for sample in of_one]
    offsets = sum(sample.end_offset - sample.start_offset for sample in every)
    usual = sum(sample.size_bytes for sample in every) / offsets if every else _ASSUMED_BYTES
    return {
        tp: RangeBytes(start, end, _stretches(samples[tp]) or [(start, usual)]) for tp, (start, end) in ranges.items()
    }


def _stretches(samples: Iterable[LogSample]) -> list[tuple[int, float]]:
    return [(each.start_offset, each.size_bytes / (each.end_offset - each.start_offset)) for each in samples]


def cut_by_bytes(
    sampler: Sampler, ranges: Iterable[OffsetRange], target_bytes: int
) -> list[tuple[list[OffsetRange], float]]:
    """Cut ranges of different partitions into pieces of about the same bytes, at most about ``target_bytes``.

    Returns the pieces of each range and the bytes of the whole range.
    """
    wholes = {each.topic_partition: each for each in ranges}
    if not wholes:
        return []
    sizes = measured(sampler, {tp: (each.start_offset, each.end_offset) for tp, each in wholes.items()})
    found = []
    for tp, whole in wholes.items():
        size_bytes = sizes[tp].size_bytes
        parts = min(whole.size, int(-(-size_bytes // target_bytes)))
        pieces = list(cut(whole, (sizes[tp].offset_at(size_bytes * number / parts) for number in range(1, parts))))
        found.append((pieces, size_bytes))
    return found


def split_by_bytes(sampler: Sampler, ranges: Iterable[OffsetRange], max_bytes_per_partition: int) -> list[OffsetRange]:
    """Divide ranges of different partitions as ``maxBytesPerPartition`` asks, into pieces of about the same bytes."""
    return [piece for pieces, _ in cut_by_bytes(sampler, ranges, max_bytes_per_partition) for piece in pieces]

"""Which record batches lie whole on which disk, and which of them a fault has taken from the last disk that had them.

That is all that may be lost in a disaster: what some disk had after the last fault is to be there in the end.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage, InvalidRecord
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from tests.simulator.broker import DIRECTORY
from tests.simulator.disk import Disk

_HEAD: Final = struct.Struct(">qiibI")
_OVERHEAD: Final = 12
_COUNT_AT: Final = 57
_HEADER_BYTES: Final = 61


class Batch(NamedTuple):
    """A batch as a log has it."""

    base_offset: int
    leader_epoch: int
    last_offset: int
    crc: int
    records: int


def whole_batches(data: bytes, first: int = 0) -> Iterator[tuple[int, int, Batch]]:
    """Yield (position, size, batch) of those whose CRC is right, from this offset on. What is behind a length that
    cannot be is gone."""
    position = 0
    while position + _HEADER_BYTES <= len(data):
        base_offset, length, epoch, magic, crc = _HEAD.unpack_from(data, position)
        size = length + _OVERHEAD
        if size < _HEADER_BYTES or position + size > len(data):
            return
        with contextlib.suppress(CorruptMessage, InvalidRecord):
            if magic == 2 and base_offset >= first:
                kernel.check_crc(data, position, size)
                (delta,) = struct.unpack_from(">i", data, position + 23)
                (records,) = struct.unpack_from(">i", data, position + _COUNT_AT)
                yield position, size, Batch(base_offset, epoch, base_offset + delta, crc, records)
        position += size


def batches_on(disk: Disk, directory: str, first: int = 0) -> dict[int, Batch]:
    """Return the whole batches of a partition's directory that can be read, from this offset on, by base offset."""
    found = {}
    names = disk.files_in(f"{DIRECTORY}/{directory}", ".log")
    for name, following in zip(names, [*names[1:], ""], strict=False):
        if following and following <= f"{first:020d}":
            continue
        path = f"{DIRECTORY}/{directory}/{name}"
        bad = disk.bad_places(path)
        for position, size, batch in whole_batches(disk.content(path), first):
            if not bad or not any(position <= each < position + size for each in bad):
                found[batch.base_offset] = batch
    return found


class Copies:
    """See the module's text."""

    def __init__(self, topic_partitions: Iterable[TopicPartition], disks: Callable[[], dict[str, Disk]]) -> None:
        """``disks`` gives every disk there is, also one that is not mounted, by a name that begins with its broker's
        number."""
        self._names = {f"{each.topic}-{each.partition}": each for each in topic_partitions}
        self._disks = disks
        # What may be lost, and which replicas a fault has touched: by broker and partition, when it did last.
        self.lost: dict[TopicPartition, set[Batch]] = {each: set() for each in self._names.values()}
        self.touched: dict[tuple[int, TopicPartition], set[str]] = {}

    def touch(self, broker: int, where: TopicPartition | None, how: str) -> None:
        """Note that a fault has touched a replica, or all of a broker's."""
        for each in self._names.values() if where is None else (where,):
            self.touched.setdefault((broker, each), set()).add(how)

    def named(self, directory: str) -> TopicPartition | None:
        """Return whose directory this is."""
        return self._names.get(directory)

    @contextlib.contextmanager
    def harm(self, broker: int, how: str) -> Iterator[None]:
        """Note what is gone from the disks afterwards that was on this broker's before."""
        before = {name: batches_on(self._disks()[f"{broker}"], name) for name in self._names}
        yield
        disks = self._disks()
        for name, where in self._names.items():
            gone = set(before[name].values()) - set(batches_on(disks[f"{broker}"], name).values())
            if not gone:
                continue
            self.touch(broker, where, how)
            for of, disk in disks.items():
                if of != f"{broker}":
                    gone -= set(batches_on(disk, name).values())
            self.lost[where] |= gone

    @property
    def any_lost(self) -> bool:
        """Whether anything may be lost."""
        return any(self.lost.values())

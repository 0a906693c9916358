"""What a reassignment copies to each broker, and whether the brokers' disks have room for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafkalite.cli.cluster.reassignment_plans import NoPlan
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.logs import LogDirInfo

# Of the file system, what stays free besides log.dir.min.free.bytes.
_LEFT_SHARE: Final = 0.1
_MIN_FREE: Final = "log.dir.min.free.bytes"
# What -1 stands for.
_DEFAULT_MIN_FREE_BYTES: Final = 64 * 1024 * 1024
_DEFAULT_MIN_FREE_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class DirectoryRoom:
    """What comes to a broker. ``free_bytes`` and ``needed_bytes`` (what must stay free) are those of all its log
    directories together; None where the broker does not return them."""

    broker: int
    replicas: int
    copied_bytes: int
    free_bytes: int | None
    needed_bytes: int

    @property
    def fits(self) -> bool:
        return self.free_bytes is None or self.free_bytes - self.copied_bytes >= self.needed_bytes

    def text(self) -> str:
        text = f"broker {self.broker}: {self.replicas} replicas come, {shown_bytes(self.copied_bytes)} to copy"
        if self.free_bytes is None:
            return text
        left = self.free_bytes - self.copied_bytes
        return f"{text}, {shown_bytes(self.free_bytes)} free, {shown_bytes(left)} afterwards"


def sizes_of(logs: Mapping[int, Sequence[LogDirInfo]]) -> dict[TopicPartition, dict[int, int]]:
    """Return the bytes of each replica, by partition and broker."""
    found: dict[TopicPartition, dict[int, int]] = {}
    for broker, directories in logs.items():
        for directory in directories:
            for key, replica in directory.replicas.items():
                if not replica.is_future:
                    found.setdefault(key, {})[broker] = replica.size_bytes
    return found


def coming(
    plan: Mapping[TopicPartition, Sequence[int]], current: Mapping[TopicPartition, Sequence[int]]
) -> dict[int, list[TopicPartition]]:
    """Return which partitions come to which broker."""
    found: dict[int, list[TopicPartition]] = {}
    for key, replicas in plan.items():
        for broker in replicas:
            if broker not in current[key]:
                found.setdefault(broker, []).append(key)
    return found


def _to_copy(sizes: Mapping[int, int], broker: int) -> int:
    """Return the bytes of a partition that a broker lacks; ``sizes`` are those of its replicas."""
    return max(sizes.values(), default=0) - sizes.get(broker, 0)


def busiest_bytes(
    plan: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    sizes: Mapping[TopicPartition, Mapping[int, int]],
) -> int:
    """Return the bytes that the broker with the most to copy has to get, or to give as a preferred leader."""
    gets: Counter[int] = Counter()
    gives: Counter[int] = Counter()
    for broker, keys in coming(plan, current).items():
        for key in keys:
            size = _to_copy(sizes.get(key, {}), broker)
            gets[broker] += size
            gives[current[key][0]] += size
    return max((*gets.values(), *gives.values()), default=0)


def rooms(
    admin: Admin,
    plan: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    logs: Mapping[int, Sequence[LogDirInfo]],
) -> list[DirectoryRoom]:
    """Return what the brokers get, and the room for it. ``logs`` are the log directories of all brokers."""
    sizes = sizes_of(logs)
    found = []
    for broker, keys in sorted(coming(plan, current).items()):
        copied = sum(_to_copy(sizes.get(key, {}), broker) for key in keys)
        directories = [each for each in logs.get(broker, ()) if each.error is None]
        free: int | None = None
        needed = 0
        if directories and all(each.usable_bytes is not None for each in directories):
            free = sum(each.usable_bytes or 0 for each in directories)
            total = sum(each.total_bytes or 0 for each in directories)
            needed = _min_free(admin, broker, total, len(directories)) + int(_LEFT_SHARE * total)
        found.append(DirectoryRoom(broker, len(keys), copied, free, needed))
    return found


def _min_free(admin: Admin, broker: int, total_bytes: int, directories: int) -> int:
    entry = admin.describe_configs(broker_id=broker).get(_MIN_FREE)
    value = -1 if entry is None or entry.value is None else int(entry.value)
    if value < 0:
        return min(_DEFAULT_MIN_FREE_BYTES * directories, int(_DEFAULT_MIN_FREE_SHARE * total_bytes))
    return value * directories


def check_rooms(found: Iterable[DirectoryRoom]) -> None:
    """Raise NoPlan for brokers whose disks would be too full."""
    full = [each for each in found if not each.fits]
    if full:
        raise NoPlan(
            "the disks of these brokers would have too little room left (log.dir.min.free.bytes and 10 % of the file "
            "system stay free): "
            + "; ".join(f"{each.text()}, {shown_bytes(each.needed_bytes)} must stay free" for each in full)
            + ". Free disk space, or choose other brokers"
        )


def shown_time(seconds: float) -> str:
    """Return a number of seconds as people read it."""
    for unit, size_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def shown_bytes(count: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

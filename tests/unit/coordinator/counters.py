"""A second coordinator, to show that the machine knows nothing of the first: counters, each a name and a number.

Key: the version (int16, 0) and the name; 1 in older logs. Value: int32. It also notes what was applied, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from spark_kafkalite.coordinator.open_transactions import OpenTransactions, ProducerIdAndEpoch
from spark_kafkalite.coordinator.shard import Shard
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.coordinator.state_machine import OpenKeys, StateMachine, UnreadableRecord
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.unit.coordinator.host_double import HostDouble, until

Entry = tuple[str, int | None]


class Counters(StateMachine):
    """The counters of one partition."""

    def __init__(self, open_keys: OpenKeys) -> None:
        self.values: dict[str, int] = {}
        self.open_keys = open_keys
        self.applied: list[Entry] = []
        # With offsets and producers, and the ends of transactions.
        self.heard: list[tuple[object, ...]] = []
        self.open: OpenTransactions[str, int] = OpenTransactions()

    def encode(self, entries: Iterable[Entry]) -> list[tuple[bytes, bytes | None]]:
        return [
            (b"\0\0" + name.encode(), None if value is None else struct.pack(">i", self._checked(value)))
            for name, value in entries
        ]

    def _checked(self, value: int) -> int:
        if value >= 1 << 31:
            raise ValueError(f"{value} is no int32")
        return value

    def canonical_key(self, key: bytes) -> bytes:
        return b"\0\0" + key[2:] if key.startswith(b"\0\1") else key

    def decode(self, key: bytes, value: bytes | None) -> Entry:
        if not key.startswith(b"\0\0") or (value is not None and len(value) != 4):
            raise UnreadableRecord(f"no counter: {key!r}")
        return key[2:].decode(), None if value is None else struct.unpack(">i", value)[0]

    def apply(
        self, entries: Sequence[Entry], offsets: Sequence[int], producer: ProducerIdAndEpoch | None = None
    ) -> None:
        for (name, value), offset in zip(entries, offsets, strict=True):
            self.applied.append((name, value))
            self.heard.append((name, value, offset, producer))
            if producer is not None:
                self.open.add(producer, name, value, offset)
                continue
            self.open.overtake(name, offset)
            self._take(name, value)

    def ended(self, producer: ProducerIdAndEpoch, *, commits: bool) -> None:
        self.heard.append((producer, commits))
        for name, value, _ in self.open.end(producer.producer_id, commits=commits):
            self._take(name, value)

    def _take(self, name: str, value: int | None) -> None:
        if value is None:
            self.values.pop(name, None)
        elif value < 0:
            raise RuntimeError("counters do not go below zero")
        else:
            self.values[name] = value

    def summary(self) -> str:
        return f"{len(self.values)} counters"


def counter_host(**how: int) -> HostDouble:
    return HostDouble("__counters", "counter", **how)


def shards_over(host: HostDouble) -> Shards[Counters]:
    return Shards(host, Counters, ManualClock())


async def served(host: HostDouble) -> tuple[Shards[Counters], Shard[Counters]]:
    """Have the partition led under the log's epoch, and loaded."""
    shards = shards_over(host)
    shards.lead(0, host.leader_epoch)
    await until(lambda: not shards.is_loading)
    return shards, shards.shard_of("c")

"""What brokers report of their logs, as a session reads it: no version is missed, and a reader that gives up in the
middle takes nothing away."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path

from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.cluster.log_report_reads import LogReportReads
from spark_kafkalite.registry.report_nodes import LogReport, encode_log, encode_node, report_path
from spark_kafkalite.registry.store import Stat, Watcher, answer
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from spark_kafkalite.registry.znodes import LOG_REPORTS
from spark_kafkalite.slices import SLICE_S, Slices
from tests.patience import PATIENCE_S
from tests.unit.registry.virtual_time import follow, run
from tests.unit.slice_clock import SliceClock

BROKER = BrokerId(2)
INCARNATION = Incarnation(77)
LIVE = {BROKER: BrokerInfo(BROKER, "h", 1, None, BrokerEpoch(1), incarnation=INCARNATION)}
STATE = PartitionState((BROKER,), version=7, created_zxid=50)
# More than one slice puts in place.
PARTITIONS = 120


def encoded(partitions: range, end_offset: int) -> bytes:
    log = LogReport(50, 7, 1, end_offset, ((1, 0),))
    return encode_node(BROKER, INCARNATION, [encode_log(TopicPartition("t", each), log) for each in partitions])


def ends(reads: LogReportReads) -> dict[int, int]:
    """Return where the logs of partitions end, as far as the broker has reported them."""
    found = {each: reads.counted(TopicPartition("t", each), STATE, LIVE) for each in range(2 * PARTITIONS)}
    return {each: logs[BROKER].end_offset for each, logs in found.items() if logs}


class CancellingClock(SliceClock):
    """Each step of long work takes a whole slice, and one of the readings of the clock cancels a task."""

    def __init__(self) -> None:
        super().__init__(reading_s=SLICE_S)
        self.readings_left = 0
        self.cancelled: asyncio.Future[None] | None = None

    def __call__(self) -> float:
        self.readings_left -= 1
        if self.readings_left == 0 and self.cancelled is not None:
            self.cancelled.cancel()
        return super().__call__()


async def read_for(reads: LogReportReads, clock: CancellingClock, readings: int) -> bool:
    """Read, but give up after some readings of the clock; return whether everything was read before."""
    clock.readings_left = readings
    clock.cancelled = asyncio.ensure_future(reads.read())
    await asyncio.wait([clock.cancelled])
    return not clock.cancelled.cancelled()


def test_what_a_cancelled_reading_has_not_put_in_place_the_next_one_does(tmp_path: Path) -> None:
    old, new = range(PARTITIONS), range(PARTITIONS // 2, PARTITIONS + PARTITIONS // 2)

    async def work(registry: EmbeddedRegistry, readings: int) -> bool:
        store, clock = EmbeddedStore(registry), CancellingClock()
        reads = LogReportReads(store, Slices(asyncio.get_running_loop(), clock))
        path = report_path(BROKER, 0)
        await reads.read()
        await answer(store.create(path, encoded(old, 5), ephemeral=True))
        was_read = await read_for(reads, clock, readings)
        await reads.read()
        assert ends(reads) == dict.fromkeys(old, 5), readings
        await answer(store.set(path, encoded(new, 6)))
        # However often that is cancelled, no more versions are kept.
        for _ in range(3):
            was_read &= await read_for(reads, clock, readings)
            assert len(reads._nodes[path.rpartition("/")[2]].replaced) <= 1
        # Of what both have, one or the other counts at each moment.
        assert ends(reads).keys() >= set(old) & set(new)
        # Cut once more, and by then there is another version.
        await answer(store.set(path, encoded(old, 7)))
        was_read &= await read_for(reads, clock, readings)
        await reads.read()
        assert ends(reads) == dict.fromkeys(old, 7), readings
        await answer(store.delete(path))
        was_read &= await read_for(reads, clock, readings)
        await reads.read()
        assert ends(reads) == {}, readings
        store.close()
        return was_read

    async def all_work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            follow(registry)
            store = EmbeddedStore(registry)
            await answer(store.create(LOG_REPORTS, make_parents=True))
            readings = 1
            while not await work(registry, readings):
                readings += 1
            assert readings > PARTITIONS // 50

    run(all_work())


class ChangingStore(EmbeddedStore):
    """A session in which a node changes when it has been read once, before the reader has its first version."""

    def __init__(self, registry: EmbeddedRegistry, path: str, data: bytes) -> None:
        super().__init__(registry)
        self._change: tuple[str, bytes] | None = (path, data)

    def get(self, path: str, watch: Watcher | None = None) -> Future[tuple[bytes, Stat]]:
        found = super().get(path, watch)
        if self._change is not None and self._change[0] == path:
            changed, self._change = self.set(*self._change), None
            changed.result(PATIENCE_S)
        return found


def test_a_node_that_changes_while_it_is_read_for_the_first_time_is_read_again(tmp_path: Path) -> None:
    async def work() -> None:
        with EmbeddedRegistry(tmp_path) as registry:
            follow(registry)
            path, partition = report_path(BROKER, 0), range(1)
            store = ChangingStore(registry, path, encoded(partition, 6))
            await answer(store.create(LOG_REPORTS, make_parents=True))
            await answer(store.create(path, encoded(partition, 5), ephemeral=True))
            changes: list[None] = []
            reads = LogReportReads(
                store, Slices(asyncio.get_running_loop(), SliceClock()), lambda: changes.append(None)
            )
            await reads.read()
            assert changes
            await reads.read()
            assert ends(reads) == {0: 6}

    run(work())

"""A retention pass is stopped in every operation of the disk: no log start goes back, no record above one is lost.

The real pass (``broker/upkeep/retention.py``) over real partitions and a LogManager on a file system in memory: four
logs, one for each reason to let segments go. Its loop and its threads are stood in for by a queue that runs in order,
so that a crash has an exact place. Then a new manager loads what is left, and is run through a pass of its own.

Each harness bug is an order that must not be: with it the same test has to fail.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.upkeep.retention import Retention
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.errors import OutOfOrderSequenceNumber
from spark_kafkalite.log.local_log import LocalLog
from spark_kafkalite.log.log_starts import LogStartJob
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import AppendResult, PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.io_threads import Lane
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs, SimulatedCrash
from tests.lab.batches import end_of, make_batch, values_of
from tests.lab.partition_states import partition_state
from tests.seeds import SEED, SOAK

pytestmark = pytest.mark.timeout(3600 if SOAK else 600)

COMMON = {"segment.bytes": "250", "index.interval.bytes": "80", "file.delete.delay.ms": "0"}
TOPICS = {
    "sized": {"retention.bytes": "500", "retention.ms": "-1"},
    "aged": {"retention.ms": "5000"},
    "expired": {"retention.ms": "10"},
    "trimmed": {"retention.ms": "-1"},
}
CONFIGS = {name: TopicConfig.from_properties({**COMMON, **settings}) for name, settings in TOPICS.items()}
SETTINGS = {"log.retention.check.interval.ms": 1000, "log.initial.task.delay.ms": 1000}
# Torn power cuts of each operation.
TORN = 30 if SOAK else 1
# The cuts of `make test` are chosen, not drawn.
FIRST = SEED * 1_000 if SOAK else 0


class Steps:
    """Stands in for the event loop and for the threads: what is put in runs in order, when it is asked to."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._ready: list[Callable[[], object]] = []
        self._later: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self._clock.monotonic_s()

    def call_soon(self, work: Callable[..., object], *arguments: object) -> None:
        self._ready.append(lambda: work(*arguments))

    def call_later(self, delay_s: float, work: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        self._later.append((self.time() + delay_s, lambda: work(*arguments)))
        return asyncio.TimerHandle(0.0, work, (), _LOOP)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=_LOOP)

    def submit(
        self, work: Callable[[], Any], on_done: Callable[[Any], None], on_error: object, lane: Lane = Lane.FILES
    ) -> None:
        self._ready.append(lambda: on_done(work()))

    def run(self, seconds: int) -> None:
        """Let time pass, and do all that comes of it."""
        for _ in range(seconds * 2):
            self._clock.advance(ms=500)
            due = [work for at_s, work in self._later if at_s <= self.time()]
            self._later = [item for item in self._later if item[0] > self.time()]
            self._ready += due
            while self._ready:
                self._ready.pop(0)()


_LOOP = asyncio.new_event_loop()


@pytest.fixture(scope="module", autouse=True)
def _close_loop() -> Iterator[None]:
    yield
    _LOOP.close()


class Host:
    """A manager with its partitions and their retention, as a broker has them."""

    def __init__(self, fs: MemoryFs, clock: ManualClock) -> None:
        self.clock = clock
        self.steps = Steps(clock)
        self.manager = LogManager(fs, ["/data"], clock, config_of=CONFIGS.__getitem__)
        self.manager.open()
        self.manager.load()
        services = PartitionServices(
            1,
            clock,
            self.steps,  # type: ignore[arg-type]
            Purgatory(self.steps),  # type: ignore[arg-type]
            1 << 26,
            on_storage_failure=_storage_failed,
        )
        self.partitions: dict[str, Partition] = {}
        for name in TOPICS:
            key = TopicPartition(name, 0)
            log = self.manager.create(key, bytes(16))
            partition = self.partitions[name] = Partition(key, bytes(16), log, services, log.log_end_offset)
            partition.become_leader(partition_state(1, replicas=(1,), epoch=0, version=0))
        self.retention = Retention(
            self.steps,  # type: ignore[arg-type]
            SETTINGS,  # type: ignore[arg-type]
            self.steps,  # type: ignore[arg-type]
            clock,
            self.manager,
            self.partitions.values(),  # type: ignore[arg-type]
            Slices(self.steps),  # type: ignore[arg-type]
        )
        self.retention.start()

    def append(self, name: str, number: int, age_ms: int = 0) -> AppendResult:
        """Append record ``number`` as the producer of the test, which numbers its batches alike."""
        batch = make_batch(
            [_value(name, number)],
            timestamp_ms=self.clock.wall_ms() - age_ms,
            producer_id=9,
            producer_epoch=0,
            base_sequence=number,
        )
        self.partitions[name].log.readiness.prepare()
        result = self.partitions[name].check_leader().try_append(memoryview(batch), 9)
        assert isinstance(result, AppendResult)
        return result

    def fill(self) -> None:
        for number in range(12):
            for name in TOPICS:
                age_ms = {"aged": 20_000 if number < 7 else -600_000, "expired": 20_000}.get(name, 0)
                self.append(name, number, age_ms)
        self.steps.run(0)
        for partition in self.partitions.values():
            partition.log.flush()
        self.manager.checkpoint({each.topic_partition: each.high_watermark for each in self.partitions.values()})

    def trim(self) -> None:
        """What DeleteRecords does, up to an offset inside a segment."""
        moving = self.retention.advance_log_starts({self.partitions["trimmed"]: 7})
        with pytest.raises(StopIteration):
            moving.send(_finish(moving, self.steps))

    def starts(self) -> dict[str, int]:
        return {name: partition.log_start_offset for name, partition in self.partitions.items()}

    def unlink(self) -> None:
        job = self.manager.due_deletions()
        if job is not None:
            job.run()


def _finish(moving: Any, steps: Steps) -> None:
    moving.send(None)
    steps.run(1)


def _storage_failed(partition: Partition, error: BaseException) -> None:
    raise AssertionError(f"{partition}: {error}")


def _value(name: str, number: int) -> bytes:
    return b"%s-%d" % (name.encode(), number) + b"." * 40


def records(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    offset = int(log.log_start_offset)
    while (piece := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        found += [each for each in values_of(piece.read()) if each[0] >= offset]
        offset = end_of(piece.read())
    return found


def work(fs: MemoryFs, clock: ManualClock, seen: dict[str, int]) -> None:
    """Fill the logs, trim one, let retention run; ``seen`` gets the starts that anybody could have seen."""
    host = Host(fs, clock)
    host.fill()
    host.partitions["trimmed"].log.flush()
    filled_at = fs.operations
    seen["operations"] = filled_at

    def look() -> None:
        for name, start in host.starts().items():
            assert start >= seen.get(name, 0)
            seen[name] = start

    try:
        host.trim()
        look()
        for _ in range(3):
            host.steps.run(1)
            look()
            host.unlink()
    except SimulatedCrash:
        look()
        raise


def whole_run() -> tuple[int, int, dict[str, int]]:
    """Return the first operation of the pass, the last, and where the logs start after it."""
    fs, seen = MemoryFs(), {}
    fs.make_directories("/")
    work(fs, ManualClock(), seen)
    return seen.pop("operations"), fs.operations, seen


def crash_everywhere() -> int:
    """Stop in every operation of the pass and load what a crash leaves: for the soak in every way that a crash can
    leave a disk, else in one after the other. Return how many cases there were."""
    first, last, _ = whole_run()
    cases = 0
    for operation in range(first + 1, last + 1):
        clock, fs, seen = ManualClock(), MemoryFs(), {}
        fs.stop_at(operation)
        with pytest.raises(SimulatedCrash):
            work(fs, clock, seen)
        seen.pop("operations")
        modes = [(CrashMode.PROCESS, 0), (CrashMode.POWER, 0)]
        modes += [(CrashMode.POWER_TORN, seed) for seed in range(FIRST + operation, FIRST + operation + TORN)]
        for mode, seed in modes if SOAK else [modes[operation % len(modes)]]:
            cases += 1
            check(fs.crash(mode, random.Random(seed)), clock, seen, f"operation {operation}, {mode.value}, seed {seed}")
    return cases


def check(left: MemoryFs, clock: ManualClock, seen: dict[str, int], where: str) -> None:
    host = Host(left, clock)
    for name, partition in host.partitions.items():
        log = partition.log
        assert log.log_start_offset >= seen.get(name, 0), f"{where}: {name} starts at {log.log_start_offset}, {seen}"
        assert log.log_end_offset == 12, f"{where}: {name} ends at {log.log_end_offset}"
        expected = [(number, _value(name, number)) for number in range(log.log_start_offset, 12)]
        assert records(log) == expected, f"{where}: {name}"
        # The producer's batches are known, whatever has been removed: the last one again, and the one after it.
        assert host.append(name, 11).duplicate, where
        assert host.append(name, 12).base_offset == 12, where
    host.steps.run(3)
    host.unlink()
    starts = host.starts()
    assert starts["sized"] >= 6 and starts["aged"] >= 6 and starts["expired"] >= 12, f"{where}: {starts}"
    left_files = [path for path in left.files() if path.endswith(".deleted")]
    assert left_files == [], where


def test_every_operation_of_a_pass_may_be_the_last() -> None:
    first, last, starts = whole_run()
    assert starts == {"sized": 6, "aged": 6, "expired": 12, "trimmed": 7}
    assert last - first > 50
    assert crash_everywhere() > (300 if SOAK else 100)


@pytest.mark.parametrize("bug", ["start before its checkpoint", "no checkpoint", "rolled and not flushed"])
def test_the_harness_finds_orders_that_must_not_be(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "start before its checkpoint":
        real = LogStartJob.run

        def early(job: LogStartJob) -> None:
            for moves in job.moves.values():
                for log, offset in moves.items():
                    log.advance_log_start(offset)
            real(job)

        monkeypatch.setattr(LogStartJob, "run", early)
    elif bug == "no checkpoint":

        def never(job: LogStartJob) -> None:
            pass

        monkeypatch.setattr(LogStartJob, "run", never)
    else:
        monkeypatch.setattr(LocalLog, "removable_until_offset", property(lambda log: log.recovery_point))
    with pytest.raises((AssertionError, OutOfOrderSequenceNumber), match=r"starts at \d+, |does not follow"):
        crash_everywhere()

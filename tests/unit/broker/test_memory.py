"""What happens when memory runs out in the middle of something."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.active_segment import ActiveSegment
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import header_of, make_batch

IDEMPOTENT = {"producer_id": 7, "producer_epoch": 0}


@pytest.fixture
def log() -> PartitionLog:
    fs = MemoryFs()
    fs.make_directories("/data")
    config = TopicConfig.from_properties({"index.interval.bytes": "0"})
    host = LogHost.alone(OpenFiles(fs), "/data", SYSTEM_CLOCK)
    return PartitionLog.create(host, "/data/t-0", TopicPartition("t", 0), bytes(16), config)


def append(log: PartitionLog, sequence: int) -> int:
    batch = make_batch(1, base_sequence=sequence, **IDEMPOTENT)
    return log.append_as_leader(batch, header_of(batch), 0).base_offset


def out_of_memory(*_: object, **__: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("place", ["take_up", "update", "remember", "_on_dirty"])
def test_append_in_which_memory_ran_out_has_not_happened(
    log: PartitionLog, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, 0)
    log.flush()
    owner = {
        "take_up": ActiveSegment,
        "update": type(log.producers.state),
        "remember": type(log.local.reader),
        "_on_dirty": log,
    }
    with monkeypatch.context() as patched:
        patched.setattr(owner[place], place, out_of_memory)
        with pytest.raises(MemoryError):
            append(log, 1)
    assert log.failure is None and log.log_end_offset == 1
    assert log.segments.active.file.size() == log.segments.active.size_bytes
    assert [append(log, 1), append(log, 2), append(log, 2)] == [1, 2, 2]
    index = log.segments.active.offset_index
    assert [index.entry(number)[0] for number in range(index.count)] == [1, 2]


def test_roll_in_which_memory_ran_out_fails_the_log(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, 0)
    log.update_config(TopicConfig.from_properties({"segment.bytes": "100"}))
    with monkeypatch.context() as patched:
        patched.setattr(type(log.segments), "roll", out_of_memory)
        with pytest.raises(MemoryError):
            append(log, 1)
    with pytest.raises(KafkaStorageError, match="out of memory"):
        append(log, 1)


@pytest.mark.parametrize("threads_before", [True, False])
def test_work_is_done_though_no_thread_can_be_started(threads_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        io = IoThreads(asyncio.get_running_loop(), 1)
        done: list[str] = []
        if threads_before:
            io.submit(lambda: "first", done.append, lambda error: done.append(str(error)), Lane.SYNC)
            await io.wait_until_idle()
        submit = io._executors[Lane.SYNC].submit

        def queue_without_thread(*arguments: object) -> None:
            if threads_before:
                submit(*arguments)  # type: ignore[arg-type]
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(io._executors[Lane.SYNC], "submit", queue_without_thread)
        io.submit(lambda: "second", done.append, lambda error: done.append(str(error)), Lane.SYNC)
        io.submit(lambda: 1 / 0, lambda _: None, lambda error: done.append(type(error).__name__), Lane.SYNC)
        await io.wait_until_idle()
        io.close()
        return done

    expected = ["second", "ZeroDivisionError"]
    # Several threads: in any order.
    assert sorted(asyncio.run(run())) == sorted(["first", *expected] if threads_before else expected)

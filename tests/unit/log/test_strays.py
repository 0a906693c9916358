"""How long logs that were set aside are kept."""

from __future__ import annotations

import pytest

from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.strays import StrayFate, StraysJob
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs

WEEK_MS = 604_800_000


def for_a_time(directory: str, topic_id: bytes | None) -> StrayFate:
    return StrayFate.KEPT_FOR_A_TIME


def names(fs: MemoryFs) -> list[str]:
    return sorted(entry.name for entry in fs.entries("/d") if entry.is_directory)


def test_logs_that_were_set_aside_go_after_their_time(caplog: pytest.LogCaptureFixture) -> None:
    fs, clock = MemoryFs(), ManualClock()
    logs = LogManager(fs, ["/d"], clock, config_of=lambda name: TopicConfig.from_properties({}))
    logs.open()
    logs.load()
    for number in range(2):
        logs.create(TopicPartition("t", number), b"i" * 16)
    kept = logs.retiring.set_aside(TopicPartition("t", 0)).rpartition("/")[2]
    # What begins like one is none.
    fs.make_directories("/d/other-strays")
    for _ in range(3):
        logs.look_at_strays(WEEK_MS, for_a_time).run()
        clock.advance(ms=WEEK_MS // 3)
    assert names(fs) == sorted([kept, "t-1", "other-strays"])
    clock.advance(ms=1)
    logs.look_at_strays(WEEK_MS, for_a_time).run()
    assert names(fs) == ["other-strays", "t-1"]
    assert "168 hours after it was set aside" in caplog.text or not caplog.text


@pytest.mark.parametrize("content", [b"", b"9" * 10_000])
def test_a_time_that_cannot_be_read_begins_anew(content: bytes) -> None:
    fs = MemoryFs()
    fs.make_directories("/d/t-0.aa-stray")
    fs.open("/d/t-0.aa-stray/stray-since", create=True).pwrite(content, 0)
    StraysJob(fs, ["/d"], 5000, 1000, for_a_time).run()
    StraysJob(fs, ["/d"], 5999, 1000, for_a_time).run()
    assert names(fs) == ["t-0.aa-stray"]
    StraysJob(fs, ["/d", "/missing"], 6000, 1000, for_a_time).run()
    assert names(fs) == []


def test_what_the_retention_is_not_for_stays_until_its_topic_is_deleted() -> None:
    fs, clock = MemoryFs(), ManualClock()
    logs = LogManager(fs, ["/d"], clock, config_of=lambda name: TopicConfig.from_properties({}))
    logs.open()
    logs.load()
    logs.create(TopicPartition("t", 0), b"i" * 16)
    kept = logs.retiring.set_aside(TopicPartition("t", 0)).rpartition("/")[2]
    asked = []

    def fate_of(directory: str, topic_id: bytes | None) -> StrayFate:
        asked.append((directory, topic_id))
        return StrayFate.KEPT if len(asked) < 4 else StrayFate.DELETED

    for _ in range(3):
        logs.look_at_strays(0, fate_of).run()
        clock.advance(ms=10 * WEEK_MS)
    assert names(fs) == [kept]
    logs.look_at_strays(-1, fate_of).run()
    assert names(fs) == []
    assert set(asked) == {(kept, b"i" * 16)}

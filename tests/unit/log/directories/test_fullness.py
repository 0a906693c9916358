"""How often a disk that fills and empties is warned of."""

from __future__ import annotations

import logging

import pytest

from spark_kafkalite.log.directories.fullness import FullnessWarnings, used_percent, warned_level
from spark_kafkalite.log.files.fs import Space


def full(percent: float) -> Space:
    return Space(free_bytes=round(100_000 - 1000 * percent), total_bytes=100_000)


def test_each_crossing_is_one_warning_that_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    warnings = FullnessWarnings("/d")
    told = []
    with caplog.at_level(logging.INFO):
        for percent in (84.9, 85.0, 86, 84, 85, 90, 95, 99, 94, 96, 92.9, 95, 82, 85, 50, 97):
            caplog.clear()
            warnings.look(full(percent))
            told += [(percent, record.levelname) for record in caplog.records]
            if percent == 95:
                text = caplog.records[0].getMessage()
    # 84 and 94 are not far enough below a level: a disk at a level is not warned of each second.
    assert told == [
        (85.0, "WARNING"),
        (95, "WARNING"),
        (92.9, "INFO"),
        (95, "WARNING"),
        (82, "INFO"),
        (85, "WARNING"),
        (50, "INFO"),
        (97, "WARNING"),
    ]
    assert text.startswith("the disk of log directory /d is 95 % full (5000 bytes are free): enlarge the disk, or have")


def test_a_file_system_without_a_size_is_not_full() -> None:
    assert used_percent(Space(0, 0)) == 0.0
    assert [warned_level(each) for each in (84.9, 85, 94.9, 95, 100)] == [0, 85, 85, 95, 95]

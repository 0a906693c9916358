"""The lines that a full disk of the registry leaves in its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite.registry.tree.room import Room


def test_a_full_disk_is_an_error_and_its_end_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 5.0
    room = Room(Path("/r/registry.db"), lambda: now_s)
    assert room.missing is None
    refused = room.note_missing("database or disk is full")
    assert refused == (
        "the registry /r/registry.db has no room: database or disk is full; free space on its disk, then try again"
    )
    now_s = 64.9
    # It is small, and says nothing of a large one.
    room.note_commit()
    assert room.missing == "database or disk is full"
    now_s = 65.0
    assert room.missing is None
    room.note_commit()
    room.note_commit()
    assert [(record.levelname, "/r/registry.db has" in record.getMessage()) for record in caplog.records] == [
        ("ERROR", True),
        ("WARNING", True),
    ]


def test_the_same_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    room = Room(Path("registry.db"), lambda: now_s)
    for second in range(121):
        now_s = float(second)
        room.note_missing("full")
        room.note_commit()
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3

"""Counts how often a search for whole batches in torn bytes looks at them, and at how many."""

from __future__ import annotations

import re

import pytest

from spark_kafkalite.log.loading import torn
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import BatchHeader


class Looks:
    """The work of ``torn.sound_batches`` while a test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Places that were looked at by themselves, and the bytes whose CRC was computed.
        self.candidates = 0
        self.checked_bytes = 0
        next_candidate, sound_header = torn._next_candidate, torn.sound_header

        def counted_candidate(candidates: re.Pattern[bytes], view: memoryview, position: int) -> int:
            self.candidates += 1
            return next_candidate(candidates, view, position)

        def counted_header(view: memoryview, position: int) -> BatchHeader:
            self.checked_bytes += kernel.read_header(view, position).size_bytes
            return sound_header(view, position)

        monkeypatch.setattr(torn, "_next_candidate", counted_candidate)
        monkeypatch.setattr(torn, "sound_header", counted_header)

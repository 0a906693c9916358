"""Whether the registry's disk has room, for its log and its answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)

# A large commit may find no room while small ones still fit. There is room again when none was refused for so long.
# Clients repeat what was refused: for so long it is not logged again.
_LASTS_S: Final = 60.0


class Room:
    """What the commits of one database have shown. One thread notes, any thread may ask."""

    def __init__(self, database: Path, monotonic_s: Callable[[], float]) -> None:
        self._database = database
        self._monotonic_s = monotonic_s
        self._refused_s = self._logged_s = float("-inf")
        self._reason = ""
        self._is_logged = False

    @property
    def missing(self) -> str | None:
        """Why a commit did not fit within the last minute, None when all did."""
        return self._reason if self._monotonic_s() - self._refused_s < _LASTS_S else None

    def note_missing(self, reason: str) -> str:
        """Note and log a commit that did not fit; return the text for those that asked for it."""
        now_s = self._monotonic_s()
        self._reason, self._refused_s = reason, now_s
        text = f"the registry {self._database} has no room: {reason}; free space on its disk"
        if now_s - self._logged_s >= _LASTS_S:
            self._logged_s, self._is_logged = now_s, True
            _LOG.error("%s. Until then brokers cannot start, topics cannot be created, leaders cannot change", text)
        return f"{text}, then try again"

    def note_commit(self) -> None:
        """Note a commit that did fit."""
        if self._is_logged and self.missing is None:
            self._is_logged = False
            _LOG.warning("the registry %s has room again", self._database)

"""How far an embedded registry has come, noted beside its file: what shows that commits of it are missing.

File ``registry.zxid``: one line of 25 bytes, ``zxid=`` and 19 digits, overwritten in place after each commit, never
synced. So it may lag behind the file after a power loss, and is never ahead of it: when it is, the write-ahead log
``registry.db-wal`` has been removed after a crash, or an older copy of the file has been put in its place. SQLite
notices neither. A note that is missing or cannot be read says nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

NOTE_NAME: Final = "registry.zxid"
_LINE: Final = re.compile(rb"zxid=([0-9]{19})\n")


class ZxidNote:
    """The open note. One thread writes."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NOTE_NAME
        self._fd = -1

    def read(self) -> int:
        """Return the noted zxid, 0 when there is none."""
        try:
            found = _LINE.fullmatch(self.path.read_bytes())
        except OSError:
            return 0
        return int(found[1]) if found else 0

    def write(self, zxid: int) -> None:
        """Note a zxid that is on the disk. Does nothing when it cannot: the registry does not depend on it."""
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._fd, b"zxid=%019d\n" % zxid, 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

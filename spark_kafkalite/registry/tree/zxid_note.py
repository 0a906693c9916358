"""The last transaction of an embedded registry, noted in a file of its own, to notice lost commits.

File ``registry.zxid``: one line of 25 bytes, ``zxid=`` and 19 digits, overwritten in place after each commit, never
synced. So it may lag behind the database after a power loss, and is never ahead of it. If it is ahead, the write-ahead
log ``registry.db-wal`` has been removed after a crash, or an older copy of the database has been put in its place.
SQLite notices neither. A note that is missing or cannot be read is ignored; an impossible one is logged and ignored.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
from pathlib import Path
from typing import Final

from spark_kafkalite.model import MAX_REGISTRY_ZXID
from spark_kafkalite.registry.tree.private_files import FILE_MODE

logger = logging.getLogger(__name__)

NOTE_NAME: Final = "registry.zxid"
_LINE: Final = re.compile(rb"zxid=([0-9]{19})\n")
# One more than a line has, to see that there is no more.
_READ_BYTES: Final = 26


class ZxidNote:
    """The open note. One thread writes."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NOTE_NAME
        self._fd = -1

    def read(self) -> int:
        """Return the noted zxid, 0 when there is none."""
        try:
            fd = self._open(os.O_RDONLY)
        except OSError:
            return 0
        try:
            found = _LINE.fullmatch(os.pread(fd, _READ_BYTES, 0))
        except OSError:
            return 0
        finally:
            os.close(fd)
        zxid = int(found[1]) if found else 0
        if zxid > MAX_REGISTRY_ZXID:
            logger.warning("%s: no registry has reached transaction %d; continuing without the note", self.path, zxid)
            return 0
        return zxid

    def write(self, zxid: int) -> None:
        """Note a zxid that is on the disk. Does nothing when it cannot: the registry does not depend on it."""
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = self._open(os.O_WRONLY | os.O_CREAT)
            os.pwrite(self._fd, b"zxid=%019d\n" % zxid, 0)

    def _open(self, flags: int) -> int:
        """Open the note, if it is a regular file: a pipe without a writer would block the registry."""
        fd = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, FILE_MODE)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), str(self.path))
        return fd

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

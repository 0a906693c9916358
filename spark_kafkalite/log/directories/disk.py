"""The state of one log directory's disk: what a failed write means, and what still works after it.

Here alone is decided what becomes of a failed write (:func:`kind_of`):

============  ===========================  =====================================================================
kind          errno                        consequence
============  ===========================  =====================================================================
NO_ROOM       ENOSPC, EDQUOT, EROFS        the file was cut back or never grew, so the log is whole: the directory
                                           refuses records until a probe finds that it takes them; reads go on
NO_RESOURCES  EMFILE, ENFILE, ENOMEM       the request fails, nothing is marked
REFUSED       EISDIR, ELOOP, ENOTDIR,      the request fails, nothing is marked: a name is taken by something that is
              EEXIST, ESPIPE, EACCES,      not ours, or a file is not ours to open. It concerns one file, and so at most
              EPERM                        its log; the disk is sound
BROKEN        all others, and every        the directory is offline until a restart; never tried again, because the
              failed fsync                 kernel has forgotten by then which pages did not reach the disk
============  ===========================  =====================================================================

A directory refuses records before its disk is full: below ``log.dir.min.free.bytes``. How much may still be written
until the next check of the file system is counted in ``budget_bytes``, so that an append costs one subtraction.

Small files (checkpoints, indexes, producer snapshots, the registry's pages) must be written even on a disk that others
have filled. For them ``.kafkalite-reserve`` keeps room. :meth:`LogDirectory.persist` releases it in pieces, so that
another program that fills the disk cannot take all of it at once. The reserve is made again when there is room. Nothing
is ever read from it, and after a crash any length of it will do.

The loop owns a directory; only :meth:`LogDirectory.release_reserve`, :meth:`LogDirectory.probe` and
:meth:`LogDirectory.make_reserve` run in threads.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeVar

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.files.fs import Fs, Space, write_whole

T = TypeVar("T")
logger = logging.getLogger(__name__)

RESERVE_FILE: Final = ".kafkalite-reserve"
PROBE_FILE: Final = ".kafkalite-probe"
# log.dir.min.free.bytes=-1: the smaller of these.
AUTOMATIC: Final = -1
_MIN_FREE_BYTES: Final = 64 * 1024 * 1024
_MIN_FREE_SHARE: Final = 100
# The reserve takes at most a twentieth of a file system, and is given back in eighths.
_RESERVE_SHARE: Final = 20
_RESERVE_PIECES: Final = 8
_PROBE_BYTES: Final = 4096
# Free bytes that must be there to begin again, whatever the threshold.
_LEAST_ROOM_TO_RESUME: Final = 64 * 1024
_UNLIMITED: Final = 1 << 62
# Appended bytes after which a file system that does not tell its room is asked again.
_BLIND_BYTES: Final = 1 << 20
REPAIR_DISK: Final = "repair or replace the disk"
_PUT_RIGHT: Final = "put that right"


class FailureKind(Enum):
    """What a failed write means; see the module."""

    NO_ROOM = "no room"
    NO_RESOURCES = "no resources"
    REFUSED = "refused"
    BROKEN = "broken"


_KINDS: Final = {
    errno.ENOSPC: FailureKind.NO_ROOM,
    errno.EDQUOT: FailureKind.NO_ROOM,
    errno.EROFS: FailureKind.NO_ROOM,
    errno.EMFILE: FailureKind.NO_RESOURCES,
    errno.ENFILE: FailureKind.NO_RESOURCES,
    errno.ENOMEM: FailureKind.NO_RESOURCES,
    errno.EISDIR: FailureKind.REFUSED,
    errno.ELOOP: FailureKind.REFUSED,
    errno.ENOTDIR: FailureKind.REFUSED,
    errno.EEXIST: FailureKind.REFUSED,
    errno.ESPIPE: FailureKind.REFUSED,
    errno.EACCES: FailureKind.REFUSED,
    errno.EPERM: FailureKind.REFUSED,
}


def kind_of(error: OSError) -> FailureKind:
    """Return what a failed write means. Not for fsync: a failed one is always BROKEN."""
    return _KINDS.get(error.errno or 0, FailureKind.BROKEN)


def text_of(error: OSError) -> str:
    """Return the system's text for an error; for a missing permission also the owner."""
    text = error.strerror or str(error)
    if isinstance(error, PermissionError):
        where = error.filename or "there"
        text += f" (the broker runs as user id {os.geteuid()}, which must be able to write {where})"
    return text


class LogDirectory:
    """One of ``log.dirs``: online or offline, taking records or refusing them."""

    def __init__(self, fs: Fs, path: str, *, min_free_bytes: int = 0, reserve_bytes: int = 0) -> None:
        """``min_free_bytes`` 0 means no threshold, AUTOMATIC the default one; ``reserve_bytes`` 0 no reserve."""
        self.path = path
        # Why it is offline: nothing is read or written any more. None while it is online.
        self.offline: str | None = None
        # What is to be done about it.
        self.remedy = REPAIR_DISK
        # Which call of its disk has not returned for so long that nothing new is asked of it; None while it answers.
        self.hanging: str | None = None
        # Why no records are taken at present; None while they are.
        self.refusal: str | None = None
        # Whether that is because nothing at all can be written, so that nothing may be begun that cannot stop halfway.
        self.is_read_only = False
        # Bytes that may be appended before the next look; below 0 when records are refused.
        self.budget_bytes = 0 if min_free_bytes else _UNLIMITED
        self._fs = fs
        self._min_free_bytes = min_free_bytes
        self._reserve_bytes = reserve_bytes
        self._reserve_lock = threading.Lock()
        self._held_bytes = 0
        self._piece_bytes = 0
        # The size of the write that was refused first.
        self._wanted_bytes = 0

    def __repr__(self) -> str:
        state = f"offline={self.offline!r}" if self.offline else f"refusal={self.refusal!r}"
        return f"LogDirectory({self.path!r}, {state}, reserve={self._held_bytes})"

    def take_offline(self, reason: str, *, is_sound: bool = False) -> bool:
        """Serve nothing any more; return whether that is news. ``is_sound``: the disk is, a file is in the way."""
        if self.offline is not None:
            return False
        self.offline = reason
        self.remedy = _PUT_RIGHT if is_sound else REPAIR_DISK
        self.budget_bytes = -1
        logger.error(
            "log directory %s is offline, its partitions are not served: %s; %s, then restart the broker",
            self.path,
            reason,
            self.remedy,
        )
        return True

    # Records --------------------------------------------------------------------------------------------------------

    def check(self, size_bytes: int) -> None:
        """Raise KafkaStorageError if these records are not taken; called when they are beyond ``budget_bytes``."""
        if self.refusal is None:
            self.look(size_bytes)
        if self.refusal is not None:
            raise KafkaStorageError(self.refusal)

    def look(self, size_bytes: int = 0) -> None:
        """See how much room there is, and refuse records when it is too little for so many bytes more."""
        if self.refusal is not None or not self._min_free_bytes:
            return
        space = self.space()
        if space is None:
            self.budget_bytes = _BLIND_BYTES
            return
        threshold = self._threshold(space)
        self.budget_bytes = space.free_bytes - threshold - size_bytes
        if self.budget_bytes < 0:
            self._wanted_bytes = size_bytes
            more = f", {size_bytes} more would leave less than" if space.free_bytes >= threshold else ", less than"
            self._refuse(f"{_free_text(space)}{more} log.dir.min.free.bytes ({threshold} bytes here)")

    def out_of_room(self, doing: str, error: OSError, size_bytes: int = 0) -> KafkaStorageError:
        """Refuse records from now on, because a write of so many bytes found no room; return what to answer with."""
        self._wanted_bytes = size_bytes
        what = f"cannot {doing}: {error.strerror or error}"
        if error.errno != errno.EROFS:
            space = self.space()
            what += f"; {_free_text(space)}" if space is not None else ""
        self._refuse(what, read_only=error.errno == errno.EROFS)
        return KafkaStorageError(self.refusal)

    def _refuse(self, what: str, *, read_only: bool = False) -> None:
        self.budget_bytes = -1
        self.is_read_only = read_only
        if self.refusal is not None:
            return
        remedy = (
            "mount it for writing"
            if read_only
            else "free space on its disk, or have old records deleted (retention.ms, retention.bytes, DeleteRecords)"
        )
        self.refusal = (
            f"log directory {self.path} takes no records: {what}; {remedy}. It resumes by itself, without a restart"
        )
        logger.error("%s; reads go on", self.refusal)

    def resume(self) -> bool:
        """Take records again after a probe that succeeded, if there is room enough; return whether it does."""
        if not self.may_resume:
            return False
        self.refusal = None
        self.is_read_only = False
        self.budget_bytes = 0 if self._min_free_bytes else _UNLIMITED
        self.look()
        if self.refusal is None:
            space = self.space()
            logger.info("log directory %s takes records again%s", self.path, f": {_free_text(space)}" if space else "")
        return self.refusal is None

    @property
    def may_resume(self) -> bool:
        """Whether records are refused and the file system has room again: for the write that did not fit, and an eighth
        of the threshold to spare."""
        if self.refusal is None or self.offline is not None:
            return False
        space = self.space()
        if space is None:
            return True
        threshold = self._threshold(space) if self._min_free_bytes else 0
        return space.free_bytes >= max(threshold + threshold // 8, _LEAST_ROOM_TO_RESUME) + self._wanted_bytes

    def probe(self) -> None:
        """Write, sync and remove a small file. In any thread; OSError as it comes from the disk."""
        path = f"{self.path}/{PROBE_FILE}"
        try:
            file = self._fs.open(path, create=True)
            write_whole(file, bytes(_PROBE_BYTES))
            file.sync()
        finally:
            with contextlib.suppress(OSError):
                self._fs.unlink(path)

    def space(self) -> Space | None:
        """Return the room of the directory's file system, None where the system does not report it."""
        try:
            return self._fs.space(self.path)
        except OSError:
            return None

    def _threshold(self, space: Space) -> int:
        if self._min_free_bytes == AUTOMATIC:
            return min(_MIN_FREE_BYTES, space.total_bytes // _MIN_FREE_SHARE)
        return self._min_free_bytes

    # Small files ----------------------------------------------------------------------------------------------------

    def persist(self, write: Callable[[], T]) -> T:
        """Write small files; where there is no room the reserve makes some, piece by piece, and it is tried again.

        ``write`` can be repeated. OSError comes out when that does not help.
        """
        while True:
            try:
                return write()
            except OSError as error:
                if kind_of(error) is not FailureKind.NO_ROOM:
                    raise
                # Whatever is freed now must not go into records.
                self.out_of_room("write small files", error)
                if error.errno == errno.EROFS or not self.release_reserve():
                    raise

    def release_reserve(self) -> bool:
        """Give a piece of the reserve back to the file system; return whether there was any. In any thread."""
        with self._reserve_lock:
            if not self._held_bytes:
                return False
            path = f"{self.path}/{RESERVE_FILE}"
            left = self._held_bytes - max(self._piece_bytes, _PROBE_BYTES)
            try:
                if left <= 0:
                    left = 0
                    self._fs.unlink(path)
                else:
                    self._fs.open(path).truncate(left)
            except OSError as error:
                logger.warning("cannot release the reserve %s: %s", path, error.strerror or error)
                self._held_bytes = 0
                return False
            self._held_bytes = left
            return True

    def find_reserve(self) -> None:
        """Take up the reserve that an earlier run left. OSError when the directory cannot be read."""
        path = f"{self.path}/{RESERVE_FILE}"
        if self._fs.exists(path):
            self._held_bytes = self._fs.open(path).size()
            self._piece_bytes = self._held_bytes // _RESERVE_PIECES

    @property
    def wants_reserve(self) -> bool:
        """Whether the reserve is smaller than it should be, and there is room to make it."""
        wanted = self._wanted_reserve()
        return self.offline is None and self.refusal is None and wanted > self._held_bytes

    def _wanted_reserve(self) -> int:
        """Return how large the reserve should be; what it is when there is no room for more."""
        if not self._reserve_bytes or (space := self.space()) is None:
            return self._held_bytes
        size = min(self._reserve_bytes, space.total_bytes // _RESERVE_SHARE)
        threshold = self._threshold(space) if self._min_free_bytes else 0
        # It must not be what brings the directory below its threshold.
        if space.free_bytes - (size - self._held_bytes) < 2 * threshold + _LEAST_ROOM_TO_RESUME:
            return self._held_bytes
        return size

    def make_reserve(self) -> None:
        """Make the reserve as large as it should be. In any thread; what fails is tried another time."""
        with self._reserve_lock:
            size = self._wanted_reserve()
            if size <= self._held_bytes:
                return
            path = f"{self.path}/{RESERVE_FILE}"
            try:
                self._fs.open(path, create=True).allocate(size)
                self._held_bytes = size
                self._piece_bytes = size // _RESERVE_PIECES
            except OSError as error:
                logger.debug("cannot create the reserve %s: %s", path, error.strerror or error)
                with contextlib.suppress(OSError):
                    self._fs.unlink(path)
                self._held_bytes = 0

    @property
    def reserve_bytes(self) -> int:
        """How much is in reserve now."""
        return self._held_bytes


def _free_text(space: Space) -> str:
    return f"{space.free_bytes} of {space.total_bytes} bytes are free"

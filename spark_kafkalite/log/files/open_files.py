"""A bounded set of open files, so that the number of descriptors does not grow with the number of segments.

Active segments hold their own file, opened here and not kept (:meth:`OpenFiles.open_apart`). The system reports errors
of writing back to descriptors that were open when they happened, so such a file stays open until it is synced. Sealed
segments and index files are opened here when they are read and stay open until others push them out. A file that is
pushed out while an answer is being sent from it stays open for that answer.
"""

from __future__ import annotations

import errno
from collections import OrderedDict

from spark_kafkalite.log.files.fs import File, Fs

DEFAULT_CAPACITY = 1024


class OpenFiles:
    """Files by path, least recently used first."""

    def __init__(self, fs: Fs, capacity: int = DEFAULT_CAPACITY) -> None:
        self.fs = fs
        self._capacity = capacity
        self._files: OrderedDict[str, File] = OrderedDict()
        # How often a file was let go of.
        self._forgotten = 0

    def open_apart(self, path: str, *, create: bool = False) -> File:
        """Open a file for a holder of its own. For want of descriptors, half of those kept are closed first."""
        try:
            return self.fs.open(path, create=create)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                raise
        for _ in range((len(self._files) + 1) // 2):
            self._files.popitem(last=False)
        return self.fs.open(path, create=create)

    def open(self, path: str, *, create: bool = False) -> File:
        """Return the file, opening it if need be."""
        file = self._files.get(path)
        if file is None:
            forgotten = self._forgotten
            file = self.open_apart(path, create=create)
            if self._forgotten == forgotten:
                self._files[path] = file
            # Else another thread may have given the name to another file while this one was opened.
            if len(self._files) > self._capacity:
                self._files.popitem(last=False)
        else:
            try:
                self._files.move_to_end(path)
            except KeyError:
                # Several threads recover logs; another one has pushed it out by now.
                pass
        return file

    def forget(self, path: str) -> None:
        """Let go of a file; needed before its name is given to another one."""
        self._forgotten += 1
        self._files.pop(path, None)

    def __len__(self) -> int:
        return len(self._files)

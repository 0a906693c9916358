"""Files and directories that have been renamed out of use and wait for their removal.

Readers may still be in the middle of them: a slice of a log keeps its file open, so what is removed here is only the
name. The delay (``file.delete.delay.ms``) is Kafka's, and lets an operator rescue what went by mistake.

The list lives in memory. What a stop or a crash leaves behind ends in ``.deleted`` or ``-delete`` and is removed by the
next start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_kafkalite.log.fs import Fs, remove_tree

logger = logging.getLogger(__name__)


class DeletionJob:
    """Names to remove now. ``run`` may be called in any thread: freeing a large file takes long."""

    __slots__ = ("_fs", "directories", "files")

    def __init__(self, fs: Fs, files: list[str], directories: list[str]) -> None:
        self._fs = fs
        self.files = files
        self.directories = directories

    def run(self) -> None:
        """Remove everything; what cannot be removed is logged, and the next start tries again."""
        for path in self.files:
            try:
                self._fs.unlink(path)
            except FileNotFoundError:
                # Gone with its log's directory, or replaced by a younger file of the same name that went first.
                continue
            except OSError as error:
                logger.warning("cannot remove %s: %s; the next start tries again", path, error.strerror or error)
        for path in self.directories:
            try:
                remove_tree(self._fs, path)
            except OSError as error:
                logger.warning("cannot remove %s: %s; the next start tries again", path, error.strerror or error)


class Deletions:
    """What is to be removed, each with the monotonic time from which on that may happen."""

    __slots__ = ("_directories", "_files", "_fs")

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._files: list[tuple[float, str]] = []
        self._directories: list[tuple[float, str]] = []

    def add_files(self, at_s: float, paths: Sequence[str]) -> None:
        """Remove these files from ``at_s`` on."""
        self._files.extend((at_s, path) for path in paths)

    def add_directory(self, at_s: float, path: str) -> None:
        """Remove this directory with all it holds from ``at_s`` on."""
        self._directories.append((at_s, path))

    def due(self, now_s: float) -> DeletionJob | None:
        """Take out what may go now; None when nothing may."""
        files = [path for at_s, path in self._files if at_s <= now_s]
        directories = [path for at_s, path in self._directories if at_s <= now_s]
        if not files and not directories:
            return None
        self._files = [item for item in self._files if item[0] > now_s]
        self._directories = [item for item in self._directories if item[0] > now_s]
        return DeletionJob(self._fs, files, directories)

    def __len__(self) -> int:
        return len(self._files) + len(self._directories)

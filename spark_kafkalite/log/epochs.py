"""Which leader epoch wrote which part of a log.

A list of (leader epoch, start offset), both ascending, kept in ``leader-epoch-checkpoint`` (see ``small_files``). A
leader adds (its epoch, log end offset) before its first append; a follower takes the entries from the batches that it
copies. An epoch without followers to ask for it may wait to be written until the flush of its first records: a crash
before that takes them both, or recovery finds the epoch in the batches. Replicas find the place where their logs part
by asking for the end offset of an epoch (KIP-101, KIP-279).

Rules: entries never go backwards; an epoch has one start offset, the first it was seen with. An epoch in which no
record was written is dropped when the next begins. The first entry starts at the log start offset once earlier ones
have been cut. Source: LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import CheckpointError, read_epochs, write_epochs
from spark_kafkalite.model import NO_LEADER_EPOCH
from spark_kafkalite.records.layout import MAX_INT64

# An election and a restart each need one more below 2^31 - 1; nobody has come this far by electing.
MAX_LEADER_EPOCH: Final = 2**31 - 1_000_000
_NO_OFFSET = -1


class LeaderEpochs:
    """The leader epochs of one partition."""

    __slots__ = ("_fs", "_latest_in_file", "_path", "_removed_from", "_starts", "epochs", "latest", "unwritten")

    def __init__(self, fs: Fs, path: str, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._fs = fs
        self._path = path
        self.epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.epochs.append(epoch)
            self._starts.append(start)
        self.latest = self.epochs[-1] if self.epochs else NO_LEADER_EPOCH
        # Whether an epoch is in memory only, because it has no records yet, or there was no room for the file.
        self.unwritten = False
        # Later epochs are in memory only.
        self._latest_in_file = NO_LEADER_EPOCH
        # From here on the file may have epochs that were removed.
        self._removed_from = MAX_INT64

    @classmethod
    def load(cls, fs: Fs, path: str) -> LeaderEpochs:
        """Read the checkpoint. Entries that go backwards are dropped, as a crash of an older broker may leave them.

        Raises CheckpointError for a file with an epoch, or an offset, that no log can have.
        """
        epochs = cls(fs, path)
        for epoch, start in read_epochs(fs, path):
            if epoch > MAX_LEADER_EPOCH or start >= MAX_INT64:
                raise CheckpointError(f"{path}: {epoch} {start} is damage, no election has reached it")
            if epoch >= 0 and start >= 0:
                epochs.note(epoch, start)
        epochs._latest_in_file = epochs.latest
        return epochs

    @property
    def entries(self) -> list[tuple[int, int]]:
        """All (leader epoch, start offset) pairs."""
        return list(zip(self.epochs, self._starts, strict=True))

    def note(self, epoch: int, start_offset: int) -> bool:
        """Take up an epoch in memory and return whether it was new; ``write`` must follow.

        A lower epoch than the latest is not taken up: batches of one log never go back in epochs.
        """
        if epoch <= self.latest:
            return False
        # An epoch in which nothing was written gives its place to its successor, so starts ascend strictly.
        while self._starts and self._starts[-1] >= start_offset:
            self._starts.pop()
            self.epochs.pop()
        self.epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        return True

    def assign(self, epoch: int, start_offset: int, *, write: bool = True) -> bool:
        """Take up an epoch; return whether it was new. With ``write`` the checkpoint is then on the disk."""
        if not self.note(epoch, start_offset) and not (write and self.unwritten):
            return False
        if write:
            self.write()
        else:
            self.unwritten = True
        return True

    def replace(self, entries: Iterable[tuple[int, int]]) -> None:
        """Have exactly these entries, which ascend; ``write`` must follow."""
        self.epochs.clear()
        self._starts.clear()
        for epoch, start in entries:
            self.epochs.append(epoch)
            self._starts.append(start)
        self.latest = self.epochs[-1] if self.epochs else NO_LEADER_EPOCH
        self.unwritten = True

    def must_be_written(self, end_offset: int) -> bool:
        """Return whether the checkpoint may be wrong about what is below ``end_offset``.

        It may lack an epoch that wrote something there, not only the latest one: that may have written nothing yet, and
        one before it may be in memory only as well. Or it has one that was removed.
        """
        if not self.unwritten:
            return False
        first = bisect_right(self.epochs, self._latest_in_file)
        return self._removed_from < end_offset or (first < len(self._starts) and self._starts[first] < end_offset)

    def write(self, *, sync: bool = True) -> None:
        """Replace the checkpoint file by what is in memory; ``unwritten`` stays set when that fails."""
        self.unwritten = True
        write_epochs(self._fs, self._path, self.entries, sync=sync)
        self.unwritten = False
        self._latest_in_file = self.latest
        self._removed_from = MAX_INT64

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote ``offset``, -1 when that is not known."""
        number = bisect_right(self._starts, offset) - 1
        return self.epochs[number] if number >= 0 else NO_LEADER_EPOCH

    def epoch_for_lost(self, offset: int) -> int:
        """Return the epoch for a batch that spans lost offsets from ``offset`` on: the one that wrote ``offset``, else
        the oldest that is known. So it follows what the log may get back before it, and goes before what is behind."""
        return self.epoch_at(offset) if not self._starts or offset >= self._starts[0] else self.epochs[0]

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (the largest known epoch at or below ``epoch``, the offset where it ends); (-1, -1) when unknown.

        An epoch older than all known ones ends where the first known one starts and is answered as itself. Source:
        LeaderEpochFileCache.endOffsetFor.
        """
        if epoch < 0 or not self.epochs or epoch > self.latest:
            return NO_LEADER_EPOCH, _NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = bisect_right(self.epochs, epoch)
        if higher == 0:
            return epoch, self._starts[0]
        return self.epochs[higher - 1], self._starts[higher]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget epochs that start at or after ``end_offset``; return whether there were any: ``write`` must follow."""
        keep = len(self._starts)
        while keep and self._starts[keep - 1] >= end_offset:
            keep -= 1
        if keep == len(self._starts):
            return False
        self._removed_from = min(self._removed_from, self._starts[keep])
        del self.epochs[keep:]
        del self._starts[keep:]
        self.latest = self.epochs[-1] if self.epochs else NO_LEADER_EPOCH
        # What the file says of later ones does not count any more.
        self._latest_in_file = min(self._latest_in_file, self.latest)
        return True

    def drop_empty(self, log_end_offset: int) -> None:
        """Forget an epoch in which nothing has been written; the file follows with the next epoch that is noted."""
        if self._starts and self._starts[-1] >= log_end_offset and self.truncate_from_end(log_end_offset):
            self.unwritten = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end at or before ``start_offset``; the one that holds it starts there afterwards.

        The file follows with the next ``write``: its entries before the log start do no harm.
        """
        first = bisect_right(self._starts, start_offset) - 1
        if first < 0 or (first == 0 and self._starts[0] == start_offset):
            return
        del self.epochs[:first]
        del self._starts[:first]
        self._starts[0] = start_offset

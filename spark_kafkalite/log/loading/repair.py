"""Cuts a damaged end off a log by hand, while no broker runs: what a cut would take, and the cut.

A broker does the same when it starts after a crash, from the recovery point on. This is for damage that it does not
look for (below the recovery point, or after a clean stop), and it keeps what it cuts. :func:`plan_repair` only reads.
It finds the first batch that is not sound, and what lies behind it: a torn tail holds nothing more, but after damage in
the middle of a log sound batches may follow, which a cut would take too.

:func:`repair` first removes the clean-shutdown marker, so that the broker checks everything again. It writes what is
cut to a file next to the segment (see ``torn``), cuts, and rebuilds the segment's indexes. Each step is on the disk
before the next begins. The caller holds the log directory's ``.lock``.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.log_files import refuse_foreign
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.files.small_files import CLEAN_SHUTDOWN_FILE
from spark_kafkalite.log.loading.torn import (
    Mapped,
    keep_end,
    remove_indexes,
    set_segment_aside,
    sound_batches,
    sound_header,
)
from spark_kafkalite.log.segments.active_segment import ActiveSegment
from spark_kafkalite.log.segments.segment import LOG_SUFFIX


class Cut(NamedTuple):
    """What a repair of one log would cut off, and what of it is sound."""

    directory: str
    base_offset: int
    position: int
    cut_bytes: int
    reason: str
    # The log ends here afterwards.
    end_offset: int
    # Sound batches behind the damage: how many, their records, and the offsets from the first to the last of them.
    sound_batches: int
    sound_records: int
    sound_offsets: tuple[int, int] | None
    later_segments: tuple[int, ...]

    @property
    def path(self) -> str:
        """The segment that is cut."""
        return _path(self.directory, self.base_offset)


def _path(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}{LOG_SUFFIX}"


def plan_repair(fs: Fs, directory: str) -> Cut | None:
    """Find the first damage of a log; None when every batch is sound. Changes nothing.

    OSError when it cannot read, LogRefused for symbolic links and names that are no offsets.
    """
    entries = fs.entries(directory)
    refuse_foreign(directory, entries)
    names = [entry.name for entry in entries if entry.name.endswith(LOG_SUFFIX)]
    bases = sorted(int(name[: -len(LOG_SUFFIX)]) for name in names if name[: -len(LOG_SUFFIX)].isdecimal())
    next_offset = 0
    for number, base in enumerate(bases):
        file = fs.open(_path(directory, base))
        size = file.size()
        with Mapped(file) as view:
            if base >= next_offset:
                position, next_offset, damage = _first_damage(view, base)
                if damage is None:
                    continue
            else:
                position, damage = 0, f"the segment begins at offset {base}, the one before ends at {next_offset}"
            sound, _ = sound_batches(view, position, next_offset)
        later = tuple(bases[number + 1 :])
        for each in later:
            with Mapped(fs.open(_path(directory, each))) as view:
                sound += sound_batches(view, 0, max(next_offset, each))[0]
        offsets = (sound[0].base_offset, sound[-1].last_offset) if sound else None
        records = sum(header.record_count for header in sound)
        return Cut(directory, base, position, size - position, damage, next_offset, len(sound), records, offsets, later)
    return None


def _first_damage(view: memoryview, base_offset: int) -> tuple[int, int, str | None]:
    """Return (position, next offset, reason) of the first batch that is not sound; the reason is None without one."""
    position, next_offset, size = 0, base_offset, len(view)
    while position < size:
        try:
            header = sound_header(view, position)
        except CorruptMessage as error:
            return position, next_offset, str(error)
        if header.base_offset < next_offset:
            reason = f"a batch with base offset {header.base_offset}, {next_offset} or more was expected"
            return position, next_offset, reason
        position += header.size_bytes
        next_offset = header.next_offset
    return position, next_offset, None


def repair(fs: Fs, cut: Cut) -> list[str]:
    """Cut a log as planned; return the files that hold what was cut. OSError when the disk fails: whatever was done by
    then, nothing is lost, and the same repair may be planned again."""
    log_dir = cut.directory.rpartition("/")[0]
    marker = f"{log_dir}/{CLEAN_SHUTDOWN_FILE}"
    if fs.exists(marker):
        fs.unlink(marker)
        fs.sync_directory(log_dir)
    kept = []
    for base in reversed(cut.later_segments):
        kept.append(set_segment_aside(fs, cut.directory, base))
    file = fs.open(cut.path)
    if cut.cut_bytes:
        kept.append(keep_end(fs, cut.path, cut.position))
    fs.sync_directory(cut.directory)
    file.truncate(cut.position)
    file.sync()
    remove_indexes(fs, cut.directory, cut.base_offset)
    files = OpenFiles(fs)
    segment = ActiveSegment(files, cut.directory, cut.base_offset, cut.position, 0)
    segment.rebuild_indexes("it was cut")
    segment.write_indexes()
    files.open(segment.offset_index.path).sync()
    files.open(segment.time_index.path).sync()
    fs.sync_directory(cut.directory)
    return kept[::-1]

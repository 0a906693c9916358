"""Cutting a damaged end off a log by hand, while no broker runs: what would go, and the cutting.

A broker does the same when it starts after a crash, from the recovery point on. This is for damage that it does not
look for (below the recovery point, or after a clean stop), and it keeps what it cuts. :func:`plan_repair` only reads.
It finds the first batch that is not sound, and what lies behind it: a torn tail holds nothing more, but after damage in
the middle of a log sound batches may follow, which a cut would take too.

:func:`repair` first removes the clean-shutdown marker, so that the broker looks at everything again, then writes what
is cut to ``NAME.log.torn`` beside the segment (later segments get that suffix as a whole), cuts, and makes the
segment's indexes anew; each step is on the disk before the next begins. The caller holds the log directory's ``.lock``.
"""

from __future__ import annotations

import mmap
from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.active_segment import ActiveSegment
from spark_kafkalite.log.checkpoint import CLEAN_SHUTDOWN_FILE
from spark_kafkalite.log.fs import File, Fs, write_whole
from spark_kafkalite.log.log_files import refuse_foreign
from spark_kafkalite.log.open_files import OpenFiles
from spark_kafkalite.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES, MAGIC_POSITION, BatchHeader

TORN_SUFFIX: Final = ".torn"
_PIECE_BYTES: Final = 1 << 20
_MAGIC: Final = b"\x02"


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
        with _Mapped(file) as view:
            if base >= next_offset:
                position, next_offset, damage = _first_damage(view, base)
                if damage is None:
                    continue
            else:
                position, damage = 0, f"the segment begins at offset {base}, the one before ends at {next_offset}"
            sound = _sound_batches(view, position, next_offset)
        later = tuple(bases[number + 1 :])
        for each in later:
            with _Mapped(fs.open(_path(directory, each))) as view:
                sound += _sound_batches(view, 0, next_offset)
        offsets = (sound[0].base_offset, sound[-1].last_offset) if sound else None
        records = sum(header.record_count for header in sound)
        return Cut(directory, base, position, size - position, damage, next_offset, len(sound), records, offsets, later)
    return None


class _Mapped:
    """A file's bytes as a view: mapped where there is a descriptor, read where there is none."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def __enter__(self) -> memoryview:
        size = self._file.size()
        try:
            descriptor = self._file.fileno()
        except OSError:
            descriptor = -1
        if descriptor < 0 or not size:
            self._view = memoryview(self._file.pread(size, 0))
        else:
            self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
            self._view = memoryview(self._map)
        return self._view

    def __exit__(self, *_: object) -> None:
        self._view.release()
        if self._map is not None:
            self._map.close()


def _first_damage(view: memoryview, base_offset: int) -> tuple[int, int, str | None]:
    """Return (position, next offset, reason) of the first batch that is not sound; the reason is None without one."""
    position, next_offset, size = 0, base_offset, len(view)
    while position < size:
        try:
            header = _sound_header(view, position)
        except CorruptMessage as error:
            return position, next_offset, str(error)
        if header.base_offset < next_offset:
            reason = f"a batch with base offset {header.base_offset}, {next_offset} or more was expected"
            return position, next_offset, reason
        position += header.size_bytes
        next_offset = header.next_offset
    return position, next_offset, None


def _sound_header(view: memoryview, position: int) -> BatchHeader:
    """Return the header of the batch at a position. Raises CorruptMessage unless all of the batch is sound."""
    header = kernel.read_header(view, position)
    left = len(view) - position
    if header.size_bytes > left:
        raise CorruptMessage(f"a batch of {header.size_bytes} bytes, {left} are left")
    if header.last_offset_delta < 0:
        raise CorruptMessage(f"a batch with last offset delta {header.last_offset_delta}")
    kernel.check_crc(view, position, header.size_bytes)
    return header


def _sound_batches(view: memoryview, position: int, next_offset: int) -> list[BatchHeader]:
    """Return the headers of sound batches wherever they lie from ``position`` on."""
    found: list[BatchHeader] = []
    data = view.obj if isinstance(view.obj, bytes | mmap.mmap) else bytes(view)
    while True:
        magic = data.find(_MAGIC, position + MAGIC_POSITION)
        if magic < 0 or len(view) - (magic - MAGIC_POSITION) < HEADER_BYTES:
            return found
        position = magic - MAGIC_POSITION
        try:
            header = _sound_header(view, position)
        except CorruptMessage:
            position += 1
            continue
        if header.base_offset >= next_offset:
            found.append(header)
            next_offset = header.next_offset
        position += header.size_bytes


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
        kept.append(_free_name(fs, _path(cut.directory, base) + TORN_SUFFIX))
        fs.rename(_path(cut.directory, base), kept[-1])
        _remove_indexes(fs, cut.directory, base)
    file = fs.open(cut.path)
    if cut.cut_bytes:
        kept.append(_free_name(fs, cut.path + TORN_SUFFIX))
        torn = fs.open(kept[-1], create=True)
        for at in range(0, cut.cut_bytes, _PIECE_BYTES):
            write_whole(torn, file.pread(min(_PIECE_BYTES, cut.cut_bytes - at), cut.position + at), at)
        torn.sync()
    fs.sync_directory(cut.directory)
    file.truncate(cut.position)
    file.sync()
    _remove_indexes(fs, cut.directory, cut.base_offset)
    files = OpenFiles(fs)
    segment = ActiveSegment(files, cut.directory, cut.base_offset, cut.position, 0)
    segment.rebuild_indexes("it was cut")
    segment.write_indexes()
    files.open(segment.offset_index.path).sync()
    files.open(segment.time_index.path).sync()
    fs.sync_directory(cut.directory)
    return kept[::-1]


def _remove_indexes(fs: Fs, directory: str, base_offset: int) -> None:
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        path = f"{directory}/{base_offset:020d}{suffix}"
        if fs.exists(path):
            fs.unlink(path)


def _free_name(fs: Fs, path: str) -> str:
    """Return ``path``, or with a number behind it when an earlier repair has taken it."""
    number, name = 0, path
    while fs.exists(name):
        number += 1
        name = f"{path}.{number}"
    return name

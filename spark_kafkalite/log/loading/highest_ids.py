"""What a log's files have, for a registry that is made again: where the log ends, and the largest leader epoch and
producer id, above which the registry must stay.

Reads only: every batch of every segment, the file of leader epochs, and each producer snapshot. A batch counts when it
passes its CRC. One that does not is skipped when its length fits into its segment, and ends the segment otherwise, as a
torn tail does. Values that no broker can have written are ignored: an epoch lies before what the CRC covers, and a
client may name any producer id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.epochs import MAX_LEADER_EPOCH
from spark_kafkalite.log.files.file_kind import Kind, misplaced
from spark_kafkalite.log.files.fs import Fs, read_whole
from spark_kafkalite.log.files.small_files import LEADER_EPOCH_FILE, CheckpointError, read_epochs
from spark_kafkalite.log.producer_snapshot import SNAPSHOT_SUFFIX, load
from spark_kafkalite.log.producer_state import ProducerIdLimits, ProducerStateManager
from spark_kafkalite.log.segments.segment import LOG_SUFFIX
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT64

_READ_BYTES: Final = 1 << 20
# What is larger is counted by its header alone.
_CHECKED_BYTES: Final = 64 << 20
# Ids are given out from 0 on; one beyond can only be a client's invention, and would leave none to give.
MAX_PRODUCER_ID: Final = 2**62


@dataclass(slots=True)
class HighestIds:
    """What was found; -1 for nothing. ``problems``: what could not be read, or was not believed.

    ``end_offset`` lies behind the last whole batch, ``last_epoch`` is that batch's leader epoch. ``is_damaged``: a
    batch before it cannot be read.
    """

    leader_epoch: int = -1
    producer_id: int = -1
    problems: list[str] = field(default_factory=list)
    end_offset: int = 0
    last_epoch: int = -1
    is_damaged: bool = False
    # Whether the walk has met what is no whole batch; damage, if more follows.
    _has_broken_off: bool = False

    def _take_batch(self, end_offset: int, epoch: int) -> None:
        self.end_offset = max(self.end_offset, end_offset)
        self.is_damaged = self.is_damaged or self._has_broken_off
        if epoch <= MAX_LEADER_EPOCH:
            self.last_epoch = epoch

    def _take_epoch(self, epoch: int, where: str) -> None:
        if epoch > MAX_LEADER_EPOCH:
            self.problems.append(f"{where}: leader epoch {epoch} is left out, no election has reached it")
        else:
            self.leader_epoch = max(self.leader_epoch, epoch)

    def _take_producer(self, producer_id: int, where: str) -> None:
        if producer_id > MAX_PRODUCER_ID:
            self.problems.append(f"{where}: producer id {producer_id} is left out, no broker has given it out")
        else:
            self.producer_id = max(self.producer_id, producer_id)


def highest_ids(fs: Fs, directory: str) -> HighestIds:
    """Return what the files of the log in ``directory`` name. OSError when they cannot be read."""
    found = HighestIds()
    path = f"{directory}/{LEADER_EPOCH_FILE}"
    try:
        for epoch, _ in read_epochs(fs, path):
            found._take_epoch(epoch, path)
            # Where retention has left no record, the epoch that goes on there says what was.
            found.last_epoch = found.leader_epoch
    except CheckpointError as error:
        found.problems.append(str(error))
    for name, kind, _ in sorted(fs.entries(directory)):
        path = f"{directory}/{name}"
        stem, dot, suffix = name.partition(".")
        if not stem.isdecimal() or dot + suffix not in (LOG_SUFFIX, SNAPSHOT_SUFFIX):
            continue
        if kind is not Kind.FILE:
            found.problems.append(f"{misplaced(path, kind).strerror}; its content is not known")
        elif dot + suffix == LOG_SUFFIX:
            # What was deleted below the first segment counts, too.
            found.end_offset = max(found.end_offset, int(stem))
            _walk(fs, path, found)
        else:
            # However many a broker would keep.
            state = ProducerStateManager(ProducerIdLimits(max_ids=MAX_INT64))
            try:
                load(state, read_whole(fs, path), int(stem), path)
            except CheckpointError as error:
                found.problems.append(str(error))
            for producer_id in state.producers:
                found._take_producer(producer_id, path)
    return found


def _walk(fs: Fs, path: str, found: HighestIds) -> None:
    file = fs.open(path)
    size = file.size()
    position = window_position = 0
    window = b""
    while position < size:
        at = position - window_position
        try:
            if at + HEADER_BYTES > len(window):
                window, window_position, at = file.pread(_READ_BYTES, position), position, 0
            if not any(window[at : at + HEADER_BYTES]):
                return  # room that was reserved, and not used
            header = kernel.read_header(window, at)
            if header.size_bytes > size - position:
                raise CorruptMessage(f"a batch of {header.size_bytes} bytes, {size - position} are left")
        except CorruptMessage as error:
            found.problems.append(f"{path}: from position {position} on there are no whole batches: {error}")
            found._has_broken_off = True
            return
        if header.size_bytes <= _CHECKED_BYTES:
            if at + header.size_bytes > len(window):
                window = file.pread(max(header.size_bytes, _READ_BYTES), position)
                window_position, at = position, 0
            try:
                kernel.check_crc(window, at, header.size_bytes)
            except CorruptMessage as error:
                found.problems.append(f"{path}: the batch at position {position} is left out: {error}")
                found._has_broken_off = True
                position += header.size_bytes
                continue
        where = f"{path}, position {position}"
        found._take_epoch(header.partition_leader_epoch, where)
        found._take_batch(header.last_offset + 1, header.partition_leader_epoch)
        found._take_producer(header.producer_id, where)
        position += header.size_bytes

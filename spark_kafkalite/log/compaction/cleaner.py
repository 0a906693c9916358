"""The copy that compaction makes of a log's sealed segments: the last record of each key, offsets unchanged.

Reads ``.log`` files, writes ``BASE.log.cleaned`` with ``BASE.index.cleaned`` and ``BASE.timeindex.cleaned`` next to
them (the formats of ``segment``, BASE is the first source's), syncs them, and renames nothing: the broker checks and
swaps. It runs in a child process, knows no broker and no event loop, and leaves nothing behind when it fails. A crash
leaves ``.cleaned`` files, which recovery removes.

Two passes. The first puts the last offset of each key of the dirty part into a key map (``records.kernel.KeyMap``) of
bounded size. When the map is full, what came before the first key without room is cleaned, at whatever record that is,
and the rest is dirty still: there is always progress. The second copies batch by batch (:class:`_BatchFilter`):

* A batch of which every record stays is copied byte for byte; one of which some go keeps everything but the records,
  their count, the largest timestamp and the CRC (``records.assemble.reassemble``).
* A batch of which none stays goes, with two exceptions, which stay without records. The last one of a producer that is
  still active keeps the producer's last sequence. The last one before ``until_offset`` keeps the offset: otherwise a
  reader that waits for the next record would never learn that its position has moved on.
* A tombstone that is cleaned for the first time sets its batch's delete horizon, now + ``delete.retention.ms``; once
  that has passed it goes, in a cleaning that finds it in the clean part. There the values that it deletes are known to
  be gone; elsewhere a crash between two swaps could bring one back.
* Transaction markers stay. Records of transactions go when there is a later value outside of any transaction, replace
  nothing and lose no tombstones: which of them were aborted is not known here.
* Records below the log start go.

Groups must be swapped in the order given, each on the disk before the next: a later group may lack what an earlier one
still has a value for. Memory: the key map, a few MiB, and the largest batch, compressed and not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_kafkalite.log.compaction.clean_job import CleanedGroup, CleanJob, CleanResult
from spark_kafkalite.log.compaction.cleaner_files import CleanedOutput, CleanerSource
from spark_kafkalite.log.compaction.plan import SourceSegment, group_sources
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.records import kernel
from spark_kafkalite.records.assemble import RetainedRecords, reassemble
from spark_kafkalite.records.columns import batch_payload
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32, MAX_INT64, BatchHeader

# A slot of the key map, and how many of ten it uses.
_SLOT_BYTES: Final = 24
_LOAD_TENTHS: Final = 9


def clean(fs: Fs, job: CleanJob, on_bytes: Callable[[int], None]) -> CleanResult:
    """Write the cleaned segments of a job and return what they are; everything is synced then but the directory.

    ``on_bytes`` gets the number of bytes of every piece of I/O, at most 1 MiB each, and may wait or raise. Whatever is
    raised, the files that were written are gone then.
    Raises UncleanableLog, OSError, and what ``on_bytes`` raises.
    """
    return _Cleaning(fs, job, on_bytes).run()


class _Cleaning:
    """One run of a job."""

    def __init__(self, fs: Fs, job: CleanJob, on_bytes: Callable[[int], None]) -> None:
        self._fs = fs
        self._job = job
        self._on_bytes = on_bytes
        self._outputs: list[CleanedOutput] = []
        # A map as large as the dirty part may need, where that is less than it may be.
        dirty_offsets = max(job.until_offset - job.first_dirty_offset, 0)
        wanted_bytes = (dirty_offsets * 10 // _LOAD_TENTHS + 2) * _SLOT_BYTES
        self._key_map = kernel.KeyMap(min(job.dedupe_buffer_bytes, wanted_bytes))

    def run(self) -> CleanResult:
        job = self._job
        try:
            end_offset, mapped_bytes = self._map_keys()
            batches = _BatchFilter(job, self._key_map, end_offset)
            # A source that lies wholly behind what the map covers has nothing that could go.
            sources = [source for source in job.sources if source.base_offset < end_offset]
            later = [source.base_offset for source in job.sources[len(sources) :]]
            groups = []
            bytes_read = bytes_written = 0
            for group in group_sources(
                sources,
                later[0] if later else job.until_offset,
                segment_bytes=min(job.segment_bytes, MAX_INT32),
                segment_index_bytes=job.segment_index_bytes,
                index_interval_bytes=job.index_interval_bytes,
            ):
                bytes_read += sum(source.size_bytes for source in group)
                cleaned = self._copy(group, batches)
                if cleaned is not None:
                    groups.append(cleaned)
                    bytes_written += cleaned.size_bytes
        except BaseException:
            for output in self._outputs:
                output.remove()
            raise
        return CleanResult(
            tuple(groups),
            end_offset,
            batches.records_read,
            batches.records_kept,
            mapped_bytes + bytes_read,
            bytes_written,
            batches.next_horizon_ms,
        )

    def _map_keys(self) -> tuple[int, int]:
        """Put the keys of the dirty part into the map; return until which offset they are in, and what was read."""
        job = self._job
        bytes_read = 0
        for number, segment in enumerate(job.sources):
            next_base = job.sources[number + 1].base_offset if number + 1 < len(job.sources) else job.until_offset
            if next_base <= job.first_dirty_offset:
                continue
            source = CleanerSource(self._fs, job.directory, segment, self._on_bytes)
            bytes_read += segment.size_bytes
            for _, window, headers in source.windows():
                at = 0
                for header in headers:
                    if header.next_offset > job.first_dirty_offset and _has_final_keys(header):
                        with source.naming(at, header.base_offset):
                            kernel.check_crc(window, at, header.size_bytes)
                            payload = batch_payload(window, at, header, job.max_decompressed_bytes)
                            end_offset = self._key_map.put_records(payload, header, job.first_dirty_offset)
                        if end_offset < header.next_offset:
                            return end_offset, bytes_read
                    at += header.size_bytes
        return job.until_offset, bytes_read

    def _copy(self, group: tuple[SourceSegment, ...], batches: _BatchFilter) -> CleanedGroup | None:
        """Write one segment from some; None when it would be the one that there is."""
        job = self._job
        output = CleanedOutput(self._fs, job, group[0].base_offset, self._on_bytes)
        self._outputs.append(output)
        for segment in group:
            source = CleanerSource(self._fs, job.directory, segment, self._on_bytes)
            # As long as nothing changes nothing is written: most of a clean segment's copies would be thrown away.
            is_unchanged = len(group) == 1
            for position, window, headers in source.windows():
                pieces: list[memoryview] = []
                at = run_start = 0
                for header in headers:
                    with source.naming(at, header.base_offset):
                        replaced = batches.replacement(window, at, header)
                    size_bytes = header.size_bytes
                    if replaced is None:
                        output.take_up(header)
                    else:
                        pieces.append(window[run_start:at])
                        run_start = at + size_bytes
                        if replaced:
                            output.take_up(kernel.read_header(replaced))
                            pieces.append(memoryview(replaced))
                    at += size_bytes
                if is_unchanged and not pieces:
                    continue
                if is_unchanged:
                    is_unchanged = False
                    for before in source.pieces(0, position):
                        output.write(before)
                pieces.append(window[run_start:at])
                output.write(b"".join(pieces))
            if is_unchanged:
                output.remove()
                return None
        return output.finish(tuple(segment.base_offset for segment in group))


def _has_final_keys(header: BatchHeader) -> bool:
    """Return whether a batch's records replace earlier ones: not markers, nor what may have been aborted."""
    return not header.is_control and not header.is_transactional and header.record_count > 0


class _BatchFilter:
    """Decides what becomes of a batch, and counts."""

    def __init__(self, job: CleanJob, key_map: kernel.KeyMap, end_offset: int) -> None:
        self._job = job
        self._key_map = key_map
        self._end_offset = end_offset
        self._new_horizon_ms = min(job.now_ms + job.delete_retention_ms, MAX_INT64)
        self.records_read = 0
        self.records_kept = 0
        self.next_horizon_ms = -1

    def replacement(self, window: memoryview, at: int, header: BatchHeader) -> bytearray | None:
        """Return the batch that stands for this one, empty when it goes, None when it stays as it is.

        Raises CorruptMessage, InvalidRecord.
        """
        job = self._job
        kernel.check_crc(window, at, header.size_bytes)
        self.records_read += header.record_count
        self.records_kept += header.record_count
        if header.base_offset >= self._end_offset or header.is_control:
            return None
        if not header.record_count:
            return None if self._stays_empty(header) else bytearray()
        if header.next_offset <= job.log_start_offset:
            retained = RetainedRecords(0, 0, -1, False, bytearray(HEADER_BYTES))
        else:
            retained = self._filter(window, at, header)
        self.records_kept += retained.record_count - header.record_count
        if retained.buffer is None:
            return None
        if not retained.record_count and not self._stays_empty(header):
            return bytearray()
        return reassemble(header, retained, self._new_horizon_ms)

    def _filter(self, window: memoryview, at: int, header: BatchHeader) -> RetainedRecords:
        horizon_ms = header.delete_horizon_ms
        tombstones_until_offset, new_horizon_ms = 0, -1
        if not header.is_transactional:
            if 0 <= horizon_ms <= self._job.now_ms:
                tombstones_until_offset = self._job.first_dirty_offset
            elif horizon_ms < 0 and header.next_offset <= self._end_offset:
                new_horizon_ms = self._new_horizon_ms
        retained = self._key_map.filter_records(
            batch_payload(window, at, header, self._job.max_decompressed_bytes),
            header,
            self._job.log_start_offset,
            self._end_offset,
            tombstones_until_offset=tombstones_until_offset,
            delete_horizon_ms=new_horizon_ms,
        )
        if retained.has_new_horizon:
            self._note_horizon(new_horizon_ms)
        elif horizon_ms >= 0 and retained.tombstone_count and not header.is_transactional:
            self._note_horizon(horizon_ms)
        return retained

    def _note_horizon(self, horizon_ms: int) -> None:
        self.next_horizon_ms = horizon_ms if self.next_horizon_ms < 0 else min(self.next_horizon_ms, horizon_ms)

    def _stays_empty(self, header: BatchHeader) -> bool:
        job = self._job
        if header.next_offset == job.until_offset:
            return True
        return header.producer_id >= 0 and job.last_offset_by_producer.get(header.producer_id) == header.last_offset

"""Appending what a leader's log has to a follower's, verbatim: run by run, each checked before it is written.

Runs are those of ``copied_batches``. CRCs, offsets and epochs of a run are checked first: if one is wrong, no batch of
the run is written.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from spark_kafkalite.log.copied_batches import BatchRun, check_order, check_sums, read_headers, runs_of
from spark_kafkalite.log.epochs import MAX_LEADER_EPOCH
from spark_kafkalite.log.markers import marker_in
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.steps import Piece
from spark_kafkalite.log.truncation import truncate_fully
from spark_kafkalite.records.admission import INLINE_BATCH_BYTES
from spark_kafkalite.records.layout import LOG_OVERHEAD, MAX_INT32, BatchHeader

Batches = bytes | bytearray | memoryview
# What others may have their turn after: a piece that a thread runs, or None.
Turns = Generator[Piece[None] | None, None, None]


def copy_at_once(log: PartitionLog, batches: Batches, leader_epoch: int = MAX_LEADER_EPOCH) -> None:
    """Do all of :func:`copy_in_turns` in this thread."""
    for piece in copy_in_turns(log, batches, leader_epoch):
        if piece is not None:
            piece.run()


def copy_in_turns(log: PartitionLog, batches: Batches, leader_epoch: int = MAX_LEADER_EPOCH) -> Turns:
    """Append whole batches as the leader of ``leader_epoch`` has them. Raises CorruptMessage where they are not what
    may follow, KafkaStorageError (56) when the disk fails.

    Others may have their turn where it yields, and a thread runs the piece that it yields, if any; it is not to go on
    if the log has been written or cut by others since. An empty log may begin with a batch that holds its end: its
    leader's log start may lie inside of one.
    """
    local = log.local
    if not local.takes_appends:
        yield from log.readiness.steps()
    next_offset: int = local.log_end_offset
    # Its leader may have older records here than an epoch in which this broker has led and written nothing.
    log.epochs.drop_empty(next_offset)
    view = memoryview(batches)
    headers = read_headers(view, log.topic_partition)
    begin = headers[0].base_offset
    begins_inside = begin < next_offset <= headers[0].last_offset and not log.segments.size_bytes
    if begins_inside:
        next_offset = begin
    for run in runs_of(headers):
        if run.position:
            yield None
        check_order(run, log.topic_partition, next_offset, log.epochs.latest, leader_epoch)
        is_large = run.size_bytes > INLINE_BATCH_BYTES
        if not is_large:
            check_sums(run, view)
        log.disk.budget_bytes -= run.size_bytes
        if log.disk.budget_bytes < 0:
            log.disk.check(run.size_bytes)
        if begins_inside:
            truncate_fully(log, begin)
            begins_inside = False
        if is_large:
            yield from _copy_large(log, run, view)
        else:
            _copy_run(log, run, view)
        next_offset = local.log_end_offset


def _copy_large(log: PartitionLog, run: BatchRun, view: memoryview) -> Turns:
    """Append one batch that a thread checks and writes."""
    (header,) = run.headers
    _begin(log, header)
    batch = view[run.position : run.position + run.size_bytes]
    ahead = log.local.write_ahead(batch, -1)

    def check_and_write() -> None:
        check_sums(run, view)
        ahead.run()

    piece = Piece(check_and_write)
    yield piece
    piece.result()
    _add(log, batch, run.headers)


def _copy_run(log: PartitionLog, run: BatchRun, view: memoryview) -> None:
    """Append small batches, with one write if they go into one segment."""
    first, begin, end = 0, run.position, run.position
    for number, header in enumerate(run.headers):
        # The first batch of a segment says from when on it counts its time.
        is_due = number > first and not log.segments.active.size_bytes
        if is_due or _is_apart(log, header, end - begin):
            if number > first:
                _add(log, view[begin:end], run.headers[first:number])
            first, begin = number, end
            _begin(log, header)
        end += LOG_OVERHEAD + header.batch_length
    _add(log, view[begin:end], run.headers[first:])


def _is_apart(log: PartitionLog, header: BatchHeader, unwritten_bytes: int) -> bool:
    """Return whether something is to be done before a batch that follows so many bytes which are not written."""
    return header.partition_leader_epoch != log.epochs.latest or log.must_roll(
        header.size_bytes + unwritten_bytes, header.last_offset, header.max_timestamp
    )


def _begin(log: PartitionLog, header: BatchHeader) -> None:
    """Have the log take a batch: its epoch, and a new segment if need be."""
    if header.partition_leader_epoch != log.epochs.latest:
        log.assign_leader_epoch(header.partition_leader_epoch, header.base_offset, sync=False)
    if log.must_roll(header.size_bytes, header.last_offset, header.max_timestamp):
        # A gap that the leader's compaction has made stays within a segment, where a recovery takes it for one.
        log.roll(header.base_offset if header.last_offset - log.log_end_offset > MAX_INT32 else None)


def _add(log: PartitionLog, data: memoryview, headers: Sequence[BatchHeader]) -> None:
    if log.local.append_run(data, headers):
        log.host.on_dirty(log)
    now_ms = log.host.clock.wall_ms()
    position = 0
    for header in headers:
        if header.producer_id >= 0:
            marker = marker_in(data, position, header)
            log.producers.state.update(header, header.base_offset, now_ms, marker)
        position += LOG_OVERHEAD + header.batch_length

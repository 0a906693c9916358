"""Changes to a stopped query's checkpoint: another position, a planned batch dropped, offsets for Spark's own source.

A query that starts goes on at the end of the last finished batch N, or first repeats a batch N+1 that was planned.
Sinks know batches by their number and skip a number that they have had. So a number that a sink may have seen never
gets other records. A move changes two files:

1. ``offsets/N+1`` becomes a batch that ends at the new position. The move creates the file exclusively. So a query that
   still runs cannot plan its own batch N+1, and fails instead of going on at another position than its checkpoint.
2. ``offsets/N`` gets the new position as the end of batch N. So batch N+1 begins where it ends, and is empty.

The query runs the empty batch N+1 when it starts, and goes on with batch N+2. The move does not mark N+1 as finished,
because the sink has to see it. Spark's file sink keeps a log of every batch, and neither the sink nor readers of its
files work with a missing number (BATCH_METADATA_NOT_FOUND). To drop a planned batch, a move makes it empty in the same
way, because its sink may have received all or a part of it before the query stopped.

A move may be interrupted between the two files. If it was a move back, batch N+1 ends before it begins, and the query
fails with KAFKA_DATA_LOSS. If it was a move forward, batch N+1 is a normal batch of the records that were to be
skipped. In both cases a repetition of the move demands that it drops the planned batch, and then completes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from spark_kafkalite.manifests.files import FileExists
from spark_kafkalite.spark.checkpoints.checkpoint_files import (
    LoggedBatch,
    QueryCheckpoint,
    QueryCheckpointError,
    SourceOffset,
    commit_path,
    offsets_path,
)
from spark_kafkalite.spark.reading.offset_ranges import Offsets

# A query that wrote its checkpoint so recently counts as running.
QUIET_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """Batches to write. ``added`` is one that must not exist yet; ``replaced`` are written in this order, after it."""

    added: Mapping[int, LoggedBatch]
    replaced: Mapping[int, LoggedBatch]


def standing(checkpoint: QueryCheckpoint) -> tuple[SourceOffset, ...]:
    """Return the position of each source after the last finished batch; before any, where the query began.

    Raises QueryCheckpointError if no batch was finished and a source's offset lacks its start, as Spark's own does.
    """
    if checkpoint.committed is not None:
        return checkpoint.batch(checkpoint.committed).sources
    planned = checkpoint.batch(0)
    for number, each in enumerate(planned.sources):
        if each.initial is None:
            raise QueryCheckpointError(
                f"{checkpoint.files.root}/{offsets_path(0)}: no batch was ever finished, and the offset of source "
                f"{number} does not hold where the query began; remove the checkpoint and start the query again"
            )
    return tuple(SourceOffset.of(each.initial, each.initial) for each in planned.sources if each.initial is not None)


def moved(checkpoint: QueryCheckpoint, positions: Mapping[int, Offsets], *, drop_planned: bool) -> CheckpointChange:
    """Return what moves partitions of sources (by their number in the query) to other offsets.

    Raises QueryCheckpointError for a query with state, and for a planned batch if ``drop_planned`` is False. A planned
    batch without records, as an earlier move leaves it, needs no ``drop_planned``.
    """
    root = checkpoint.files.root
    if checkpoint.has_state:
        raise QueryCheckpointError(
            f"{root}/state: the query keeps state (an aggregation, a join, dropped duplicates) of what it has read, "
            "which would count the records again; start it with a new checkpointLocation, from the position that you "
            "want"
        )
    stand = standing(checkpoint)
    if checkpoint.planned is not None and not drop_planned:
        _check_empty(root, checkpoint.planned, checkpoint.batch(checkpoint.planned).sources, stand)
    committed, planned = checkpoint.committed, checkpoint.planned
    sources = tuple(
        _moved(each, positions[number], is_first=committed is None) if number in positions else each
        for number, each in enumerate(stand)
    )
    if planned is not None:
        dropped = checkpoint.batch(planned)
        _check_count(checkpoint, planned, dropped, sources)
        replaced = {planned: LoggedBatch(dropped.metadata, sources)}
        if committed is not None and positions:
            replaced[committed] = LoggedBatch(checkpoint.batch(committed).metadata, sources)
        return CheckpointChange({}, replaced)
    assert committed is not None
    last = checkpoint.batch(committed)
    metadata = _with_watermark(last.metadata, checkpoint.next_watermark_ms(committed))
    return CheckpointChange(
        {committed + 1: LoggedBatch(metadata, sources)}, {committed: LoggedBatch(last.metadata, sources)}
    )


def _moved(source: SourceOffset, offsets: Offsets, *, is_first: bool) -> SourceOffset:
    merged = {**(source.offsets or {}), **offsets}
    # Batch 0 begins where its own end says, see .stream_reader.
    return SourceOffset.of(merged, merged if is_first else None)


def _check_empty(root: str, planned: int, ends: tuple[SourceOffset, ...], begins: tuple[SourceOffset, ...]) -> None:
    if ends == begins:
        return
    where = f"{root}/{offsets_path(planned)}"
    for begin, end in zip(begins, ends, strict=False):
        if begin.offsets and end.offsets and any(end.offsets.get(tp, at) < at for tp, at in begin.offsets.items()):
            raise QueryCheckpointError(
                f"{where}: batch {planned} ends before it begins, as a rewind that was interrupted leaves it; repeat "
                "that rewind with --drop-planned"
            )
    raise QueryCheckpointError(
        f"{where}: batch {planned} is planned and not finished, and its sink may have had a part of it; run the query "
        "until it is, or give --drop-planned to have its records read again, in another batch"
    )


def _check_count(
    checkpoint: QueryCheckpoint, planned: int, batch: LoggedBatch, sources: tuple[SourceOffset, ...]
) -> None:
    if len(batch.sources) != len(sources):
        raise QueryCheckpointError(
            f"{checkpoint.files.root}/{offsets_path(planned)}: it has {len(batch.sources)} sources, where batch "
            f"{planned - 1} has {len(sources)}: damaged; restore both from a copy"
        )


def _with_watermark(metadata: str, watermark_ms: int) -> str:
    fields = json.loads(metadata)
    fields["batchWatermarkMs"] = max(watermark_ms, fields.get("batchWatermarkMs", 0))
    return json.dumps(fields, separators=(",", ":"))


def without_initial(checkpoint: QueryCheckpoint) -> CheckpointChange:
    """Return the change that removes ``$initial`` from the last finished batch, so that Spark's own source can read it.

    The batch is finished, so its start is not needed any more. Without ``$initial`` the change is empty. Raises
    QueryCheckpointError while a batch is planned and not finished.
    """
    planned, committed = checkpoint.planned, checkpoint.committed
    if planned is not None:
        raise QueryCheckpointError(
            f"{checkpoint.files.root}/{offsets_path(planned)}: batch {planned} is planned and not finished; run "
            "the query with format(\"kafkalite\") until it is; 'kafkalite offsets rewind --drop-planned' empties it "
            "before that"
        )
    assert committed is not None  # one of the two is there
    last = checkpoint.batch(committed)
    if all(each.initial is None for each in last.sources):
        return CheckpointChange({}, {})
    sources = tuple(
        SourceOffset.of(each.offsets) if each.initial is not None and each.offsets is not None else each
        for each in last.sources
    )
    return CheckpointChange({}, {committed: LoggedBatch(last.metadata, sources)})


def recently_changed(checkpoint: QueryCheckpoint, now_ms: int) -> str | None:
    """Return why the query counts as running, None when it does not."""
    age_ms = now_ms - checkpoint.last_changed_ms()
    if age_ms >= QUIET_MS:
        return None
    when = f"{age_ms / 1000:.0f} s ago" if age_ms >= 0 else f"{-age_ms / 1000:.0f} s ahead of this host's clock"
    return (
        f"{checkpoint.files.root}: written {when}, so its query may be running; stop the query, and try again when "
        f"nothing has changed for {QUIET_MS // 1000} s"
    )


def carry_out(checkpoint: QueryCheckpoint, change: CheckpointChange, now_ms: int) -> str:
    """Make a change and return the directory with copies of the replaced files, which lies next to the checkpoint.

    Raises QueryCheckpointError if the checkpoint was written in the last minute, or is written while this runs.
    """
    if (reason := recently_changed(checkpoint, now_ms)) is not None:
        raise QueryCheckpointError(reason)
    files = checkpoint.files
    # HDFS takes no colons.
    taken_at = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%S")
    copy = files.beside(f".copy-{taken_at}.{now_ms % 1000:03}Z")
    for batch_id in change.replaced:
        copy.write_new(offsets_path(batch_id), files.read(offsets_path(batch_id)))
    for batch_id, batch in change.added.items():
        _forget_checksum(checkpoint, batch_id)
        try:
            files.write_new(offsets_path(batch_id), batch.to_text())
        except FileExists:
            raise _running(checkpoint, offsets_path(batch_id)) from None
    for batch_id, batch in change.replaced.items():
        _forget_checksum(checkpoint, batch_id)
        files.replace(offsets_path(batch_id), batch.to_text())
    if checkpoint.planned is not None and files.exists(commit_path(checkpoint.planned)):
        raise _running(checkpoint, commit_path(checkpoint.planned))
    return copy.root


def _forget_checksum(checkpoint: QueryCheckpoint, batch_id: int) -> None:
    # Hadoop's local file system refuses a file that does not fit, and takes one without.
    checkpoint.files.delete(f"offsets/.{batch_id}.crc")


def _running(checkpoint: QueryCheckpoint, path: str) -> QueryCheckpointError:
    return QueryCheckpointError(
        f"{checkpoint.files.root}/{path}: written by the query meanwhile: it is running; stop it and try again"
    )

"""Compares the file of leader epochs with the batches of the log, and completes it. Pure, but for :func:`epoch_runs`.

A backup, a person or a disk may put an older ``leader-epoch-checkpoint`` next to newer segments. It looks right, and
makes an old epoch reach to the log's end. With such a file a leader answers its followers as if their logs diverged
from its own where they do not, and the followers truncate committed records. The batches carry the epoch that wrote
them, so they decide.

An entry (epoch, start offset) of the file fits when no batch at or behind the start has a lower epoch, and no batch
before it has this epoch or a higher one. What fits stays, also where no batch of the epoch is left: retention and
compaction remove batches, and the file alone knows then where an epoch began. What does not fit is dropped, and an
epoch of the batches without an entry begins where its first batch does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.epochs import MAX_LEADER_EPOCH, LeaderEpochs
from spark_kafkalite.log.files.small_files import LEADER_EPOCH_FILE
from spark_kafkalite.log.loading.scan import READ_BYTES
from spark_kafkalite.log.segments.segment import Segment
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES

logger = logging.getLogger(__name__)


class EpochRun(NamedTuple):
    """Batches of one leader epoch that lie behind each other; ``end_offset`` is exclusive."""

    epoch: int
    start_offset: int
    end_offset: int


def epoch_runs(segments: Iterable[Segment]) -> list[EpochRun]:
    """Read the headers of all batches, and return the epochs that wrote them; as far as the batches are sound.

    Reads all of the segments once: for a thread, or a start. OSError when the disk fails.
    """
    runs: list[EpochRun] = []
    try:
        for segment in segments:
            for _, header in segment.headers(0, read_bytes=READ_BYTES):
                epoch = header.partition_leader_epoch
                if not 0 <= epoch <= MAX_LEADER_EPOCH or (runs and epoch < runs[-1].epoch):
                    # Its CRC does not cover a batch's epoch: no election has come to this one.
                    continue
                if runs and runs[-1].epoch == epoch:
                    runs[-1] = runs[-1]._replace(end_offset=header.next_offset)
                else:
                    runs.append(EpochRun(epoch, header.base_offset, header.next_offset))
    except CorruptMessage:
        # Whoever reads the batch meets the damage; what lies before it is known.
        pass
    return runs


def completed(entries: Sequence[tuple[int, int]], runs: Sequence[EpochRun]) -> list[tuple[int, int]]:
    """Return the (epoch, start offset) pairs that the file should have, where the log has these runs; both ascend."""
    known = {epoch: start for epoch, start in entries if _fits(epoch, start, runs)}
    for run in runs:
        known.setdefault(run.epoch, run.start_offset)
    result: list[tuple[int, int]] = []
    for epoch, start in sorted(known.items()):
        # An epoch in which nothing was written gives its place to the next one.
        while result and result[-1][1] >= start:
            result.pop()
        result.append((epoch, start))
    return result


def _fits(epoch: int, start: int, runs: Sequence[EpochRun]) -> bool:
    return all(run.end_offset <= start if run.epoch < epoch else run.start_offset >= start for run in runs)


def tell_of_completion(name: object, before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> None:
    """Warn that the file of a log's epochs was wrong, unless it was not; ``after`` has taken its place."""
    if before == after:
        return
    logger.warning(
        "%s: %s does not fit the log: its (leader epoch, start offset) pairs are %s, the batches give %s",
        name,
        LEADER_EPOCH_FILE,
        before,
        after,
    )


def heads_differ(epochs: LeaderEpochs, segments: Iterable[Segment], log_start_offset: int) -> bool:
    """Return whether the first batch of some segment has another epoch than the file has for its offset.

    One header of each segment is read. The file has nothing on offsets below the log start. OSError when the disk
    fails.
    """
    for segment in segments:
        # One read, and no walk: there may be tens of thousands of segments.
        if segment.size_bytes < HEADER_BYTES:
            continue
        try:
            header = kernel.read_header(segment.file.pread(HEADER_BYTES, 0))
        except CorruptMessage:
            continue
        epoch = header.partition_leader_epoch
        if header.base_offset < log_start_offset or not 0 <= epoch <= MAX_LEADER_EPOCH:
            continue
        if epochs.epoch_at(header.base_offset) != epoch:
            return True
    return False
